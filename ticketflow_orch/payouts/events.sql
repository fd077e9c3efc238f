-- name: let_go
-- What was held before its event was written gets it now; what was held after that has its event woken. Payouts are
-- found by payout_public_id_key, events by their key.
WITH asked AS (
    SELECT * FROM payout WHERE public_id = ANY (%(references)s::uuid[])
), woken AS (
    {woken}
)
{events};
