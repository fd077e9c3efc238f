-- name: write
-- The balances of a month that are missing, for a range of organizations. Each takes part with all its keys or none, so
-- its latest balance tells up to where its entries are in balances; what comes back or is brought along is marked by
-- the statement that counts it. Ledger: its key, month by month. History is judged anew where its end has moved.
WITH member AS MATERIALIZED (
    SELECT organization.id AS organization_id, last.month::date AS last_month,
        {pays_from} AS pays_from,
        last.knows_history AND last.payouts_from IS DISTINCT FROM {pays_from} AS is_moved
    FROM organization LEFT JOIN LATERAL (
        SELECT month, payouts_from, knows_history FROM organization_balance AS before
        WHERE before.organization_id = organization.id AND before.month < %(month)s::date
        ORDER BY before.month DESC LIMIT 1
    ) AS last ON true
    WHERE organization.id BETWEEN %(low)s::bigint AND %(high)s::bigint
        AND NOT EXISTS (
            SELECT FROM organization_balance AS there
            WHERE there.organization_id = organization.id AND there.month = %(month)s::date)
        AND NOT EXISTS (
            SELECT FROM parked_organization AS parked
            WHERE parked.organization_id = organization.id AND parked.month <= %(month)s::date
                AND resolved_at IS NULL)
), came_back AS (
    UPDATE payout SET returned_month = %(month)s::date
    FROM member
    WHERE payout.organization_id = member.organization_id AND payout.state IN ('REJECTED', 'RETURNED')
        AND payout.returned_month IS NULL AND payout.month < %(month)s::date
    RETURNING payout.organization_id, payout.currency, payout.amount
), brought_along AS (
    UPDATE opening_balance SET balance_month = %(month)s::date
    FROM member
    WHERE opening_balance.organization_id = member.organization_id AND opening_balance.balance_month IS NULL
    RETURNING opening_balance.organization_id, opening_balance.currency, opening_balance.amount
), part (organization_id, currency, net, returned, brought, settled) AS (
    SELECT member.organization_id, entry.currency, entry.net, 0, 0, entry.settled
    FROM member CROSS JOIN LATERAL (
        SELECT currency, sum(net) AS net,
            coalesce(sum(net) FILTER (WHERE origin_month < member.pays_from), 0) AS settled
        FROM ({ledger_months}) AS period JOIN ledger_entry ON ledger_entry.month = period.month
        WHERE ledger_entry.organization_id = member.organization_id
            AND period.month > coalesce(member.last_month, '-infinity') AND period.month <= %(month)s::date
        GROUP BY currency
    ) AS entry
    UNION ALL
    SELECT organization_id, currency, 0, amount, 0, 0 FROM came_back
    UNION ALL
    SELECT organization_id, currency, 0, 0, amount, 0 FROM brought_along
    UNION ALL
    SELECT member.organization_id, moved.currency, 0, 0, 0, moved.settled
    FROM member CROSS JOIN LATERAL ({moved}) AS moved
    WHERE member.is_moved AND member.pays_from IS NOT NULL
    UNION ALL
    SELECT carried.organization_id, carried.currency, 0, 0, 0, 0
    FROM member JOIN organization_balance AS carried
        ON carried.organization_id = member.organization_id AND carried.month = member.last_month
    WHERE carried.closing <> 0
), movement AS (
    SELECT organization_id, currency, sum(net) AS net, sum(returned) AS returned, sum(brought) AS brought,
        sum(settled) AS settled
    FROM part GROUP BY organization_id, currency
), balance AS (
    SELECT movement.organization_id, movement.currency, previous.month AS previous_month,
        coalesce(previous.closing, 0) + brought AS opening, net, returned, settled,
        coalesce(previous.closing, 0) + brought + net + returned - settled AS due,
        member.pays_from, coalesce(member.pays_from <= %(month)s::date, false) AS is_paid
    FROM movement JOIN member USING (organization_id) LEFT JOIN LATERAL (
        SELECT month, closing FROM organization_balance AS before
        WHERE before.organization_id = movement.organization_id AND before.currency = movement.currency
            AND before.month < %(month)s::date
        ORDER BY before.month DESC LIMIT 1
    ) AS previous ON true
)
INSERT INTO organization_balance (organization_id, currency, month, previous_month, opening, net, returned,
    settled_elsewhere, due, payable, closing, payouts_from, knows_history)
SELECT organization_id, currency, %(month)s::date, previous_month, opening::bigint,
    net::bigint, returned::bigint, settled::bigint, due::bigint,
    CAST(CASE WHEN is_paid AND due >= greatest(payout_minimum, 1) THEN due ELSE 0 END AS bigint),
    CAST(CASE WHEN is_paid AND due >= greatest(payout_minimum, 1) THEN 0 ELSE due END AS bigint), pays_from, true
FROM balance JOIN currency ON code = currency
ORDER BY organization_id, currency
ON CONFLICT ON CONSTRAINT organization_balance_pkey DO NOTHING;
