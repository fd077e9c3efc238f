-- name: unpaid
SELECT balance.month::date AS month, balance.currency, exponent, count(*) AS balances,
    CAST(sum(payable) AS bigint) AS amount,
    coalesce('payouts begin with ' || to_char(begin, 'YYYY-MM'), 'payouts are off') AS why
FROM organization_balance AS balance
JOIN currency ON code = balance.currency
JOIN organization ON organization.id = organization_id
CROSS JOIN LATERAL (SELECT {pays_from} AS begin) AS paid
WHERE payable > 0 AND {members} AND (%(only)s::date IS NULL OR balance.month = %(only)s::date)
    AND (begin IS NULL OR balance.month < begin)
    AND NOT EXISTS (
        SELECT FROM payout
        WHERE payout.organization_id = balance.organization_id AND payout.currency = balance.currency
            AND payout.month = balance.month)
GROUP BY balance.month, balance.currency, exponent, begin
ORDER BY balance.month, balance.currency, begin;
