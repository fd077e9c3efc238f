-- name: total
-- The month's totals by currency, anew: only where the passes since the one that wrote them last have posted anything,
-- also one that was given up; a month may be old and have none. What was posted in a month lies together in the
-- ledger's key.
INSERT INTO settlement_total AS total
SELECT month, currency, count(*) FILTER (WHERE origin_month = month AND sequence = 0),
    sum(captures), sum(refunds), sum(chargebacks), sum(fees), sum(commission), sum(commission_tax), sum(net)
FROM ledger_entry
WHERE month = %(month)s::date AND (
    NOT EXISTS (SELECT FROM settlement_total WHERE month = %(month)s::date)
    OR EXISTS (
        SELECT FROM settlement_chunk
        WHERE month = %(month)s::date AND rows_new + rows_adjusted > 0 AND pass > (
            SELECT coalesce(max(pass), 0) FROM settlement_pass
            WHERE month = %(month)s::date AND pass < %(pass)s::integer AND state = 'DONE')))
GROUP BY month, currency
ON CONFLICT (month, currency) DO UPDATE SET
    (organizations, captures, refunds, chargebacks, fees, commission, commission_tax, net) =
    (excluded.organizations, excluded.captures, excluded.refunds, excluded.chargebacks, excluded.fees,
    excluded.commission, excluded.commission_tax, excluded.net);
