-- name: examples
-- The first few of each month's rows of the CTE `bad`, which has an organization, a currency, a month and what is
-- wrong.
SELECT month, coalesce(external_ref, 'id ' || organization_id) AS external_ref, numbered.currency, what, breaches
FROM (
    SELECT bad.*, count(*) OVER (PARTITION BY month) AS breaches,
        row_number() OVER (PARTITION BY month ORDER BY organization_id, currency) AS place
    FROM bad
) AS numbered LEFT JOIN organization ON organization.id = organization_id
WHERE place <= %(most)s::bigint
ORDER BY month, place;


-- name: judged_months
-- Closed months that should be paid by now: up to the last one with payouts, or closed three days ago.
SELECT month FROM ({periods}) AS period
WHERE state = 'CLOSED' AND month >= %(first)s::date AND (
    closed_at < clock_timestamp() - interval '3 days' OR month <= (
        SELECT greatest((SELECT max(month) FROM payout), max(month) FILTER (WHERE paid_at IS NOT NULL))
        FROM ({periods}) AS period))
ORDER BY month;


-- name: not_as_payable
-- Balances and payouts of those months that are not the same.
WITH judged AS ({months}), balance AS (
    SELECT organization_id, currency, month, payable
    FROM organization_balance JOIN judged USING (month)
    WHERE payable > 0 AND organization_id BETWEEN %(low)s::bigint AND %(high)s::bigint
), paid AS (
    SELECT organization_id, currency, month, amount FROM payout JOIN judged USING (month)
    WHERE organization_id BETWEEN %(low)s::bigint AND %(high)s::bigint
), bad AS (
    SELECT organization_id, currency, month,
        'payable ' || coalesce(payable, 0) || ', requested ' || coalesce(amount, 0) AS what
    FROM balance FULL JOIN paid USING (organization_id, currency, month)
    WHERE payable IS DISTINCT FROM amount
        AND (amount IS NOT NULL OR month >= {pays_from})
)
{examples};


-- name: in_doubt
-- By payout_waiting_idx.
WITH bad AS (
    SELECT organization_id, currency, month,
        'payout ' || public_id || ' of ' || amount || ': ' || coalesce(reason, 'nobody knows why') AS what
    FROM payout
    WHERE state = 'IN_DOUBT' AND organization_id BETWEEN %(low)s::bigint AND %(high)s::bigint
)
{examples};
