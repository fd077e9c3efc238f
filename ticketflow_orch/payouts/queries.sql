-- name: payouts
-- All that people see of a payout, without a condition; its event is found by the event's key.
SELECT public_id AS reference, external_ref AS organization, payout.month, payout.currency, exponent, amount,
    payout.state, reason, provider_ref, decided_by, created_at, payout.first_attempt_at, answered_at,
    returned_month, run_id, payout.state = 'CONFIRMED' AND {shares} AS shares,
    outbox_event.state AS delivery, coalesce(attempts, 0) AS attempts, last_error
FROM payout
JOIN organization ON organization.id = organization_id
JOIN currency ON code = payout.currency
LEFT JOIN outbox_event ON dedupe_key = {event_key};


-- name: list
-- The latest of all that is asked for: backwards through the primary key.
{payouts}
WHERE (%(month)s::date IS NULL OR payout.month = %(month)s::date)
    AND (%(currency)s::char(3) IS NULL OR payout.currency = %(currency)s::char(3))
    AND (%(state)s::text IS NULL OR payout.state = %(state)s::text)
    AND (%(organization)s::text IS NULL OR external_ref = %(organization)s::text)
ORDER BY payout.id DESC LIMIT %(limit)s::bigint;


-- name: show
-- One payout, by payout_public_id_key.
{payouts} WHERE public_id = %(reference)s::uuid;


-- name: by_currency
-- A month's payouts by currency, through payout_month_idx (BRIN).
SELECT currency, exponent, count(*) AS payouts, sum(amount) AS amount,
    coalesce(sum(amount) FILTER (WHERE state = 'HELD'), 0) AS held,
    coalesce(sum(amount) FILTER (WHERE state = 'REQUESTED'), 0) AS waiting,
    coalesce(sum(amount) FILTER (WHERE state = 'CONFIRMED'), 0) AS confirmed,
    coalesce(sum(amount) FILTER (WHERE state IN ('REJECTED', 'RETURNED')), 0) AS back,
    coalesce(sum(amount) FILTER (WHERE state = 'IN_DOUBT'), 0) AS in_doubt
FROM payout JOIN currency ON code = currency
WHERE month = %(month)s::date
GROUP BY currency, exponent ORDER BY currency;
