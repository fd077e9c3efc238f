-- name: list
{payouts}
WHERE (%(month)s::date IS NULL OR payout.month = %(month)s::date)
    AND (%(currency)s::char(3) IS NULL OR payout.currency = %(currency)s::char(3))
    AND (%(state)s::text IS NULL OR payout.state = %(state)s::text)
    AND (%(organization)s::text IS NULL OR external_ref = %(organization)s::text)
ORDER BY payout.id DESC LIMIT %(limit)s::bigint;


-- name: show
{payouts} WHERE public_id = %(reference)s::uuid;
