-- name: organization
-- By organization_external_ref_key.
SELECT id, name, timezone, {pays_from} AS payouts_from FROM organization WHERE external_ref = %(ref)s;


-- name: state
-- How far the month is, up to when its movements were read, and why the organization is parked, if it is.
SELECT (SELECT state FROM ({periods}) AS period WHERE month = %(month)s) AS state,
    (SELECT cutoff_at FROM settlement_pass
        WHERE state = 'DONE' AND (month = %(month)s OR closed_through >= %(month)s)
        ORDER BY cutoff DESC LIMIT 1) AS cutoff,
    (SELECT string_agg(coalesce(error, reason), '; ') FROM parked_organization
        WHERE organization_id = %(organization_id)s AND resolved_at IS NULL
            AND (month = %(month)s OR (month < %(month)s AND reason IS NOT NULL))) AS parked;


-- name: lines
-- What the movements of the month come to by rate, by money_movement_settlement_idx alone.
WITH line AS (
    SELECT movement.currency, movement.commission_rate_bps, movement.commission_tax_bps, {line}
    FROM money_movement AS movement
    WHERE organization_id = %(organization_id)s AND occurred_at >= %(starts_at)s AND occurred_at < %(ends_at)s
    GROUP BY movement.currency, movement.commission_rate_bps, movement.commission_tax_bps
), rounded AS (
    SELECT currency, commission_rate_bps, commission_tax_bps, {rounded_line} FROM line
)
SELECT currency, exponent, commission_rate_bps, commission_tax_bps, {amounts}
FROM rounded JOIN currency ON code = currency
WHERE (captures, refunds, chargebacks, fees) <> (0, 0, 0, 0)
ORDER BY currency, commission_rate_bps, commission_tax_bps;


-- name: movements
-- Each movement of the month, by money_movement_settlement_idx, and whether a pass has read it.
SELECT movement.external_ref, movement.kind, movement.is_void, target.external_ref AS reverses, movement.currency,
    exponent, movement.amount, movement.commission_rate_bps, movement.occurred_at,
    NOT settlement_has_read(movement.id, movement.organization_id, %(month)s::date) AS late
FROM money_movement AS movement
JOIN currency ON code = movement.currency
LEFT JOIN money_movement AS target ON target.id = movement.reverses_id
WHERE movement.organization_id = %(organization_id)s
    AND movement.occurred_at >= %(starts_at)s AND movement.occurred_at < %(ends_at)s
ORDER BY movement.occurred_at, movement.id;


-- name: entries
-- What is posted about the month, in whatever month: ledger_entry_pkey begins with that.
SELECT month, sequence, entry.currency, exponent, {amounts}, reason, posted_at
FROM ledger_entry AS entry JOIN currency ON code = entry.currency
WHERE organization_id = %(organization_id)s AND origin_month = %(month)s
    AND month = ANY (SELECT period.month FROM ({periods}) AS period WHERE period.month >= %(month)s)
ORDER BY month, entry.currency, sequence;


-- name: balances
-- By organization_balance_pkey.
SELECT balance.currency, exponent, {amounts}, payout.state AS paid
FROM organization_balance AS balance
JOIN currency ON code = balance.currency
LEFT JOIN payout USING (organization_id, currency, month)
WHERE balance.organization_id = %(organization_id)s AND balance.month = %(month)s
ORDER BY balance.currency;
