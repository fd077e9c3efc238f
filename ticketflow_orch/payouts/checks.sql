-- name: not_as_payable
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
        AND (amount IS NOT NULL OR month >= {pays_from_of_organization_id})
)
{examples};


-- name: in_doubt
WITH bad AS (
    SELECT organization_id, currency, month,
        'payout ' || public_id || ' of ' || amount || ': ' || coalesce(reason, 'nobody knows why') AS what
    FROM payout
    WHERE state = 'IN_DOUBT' AND organization_id BETWEEN %(low)s::bigint AND %(high)s::bigint
)
{examples};
