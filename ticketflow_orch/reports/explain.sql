-- name: organization
SELECT id, name, timezone, {pays_from} AS payouts_from FROM organization WHERE external_ref = %(ref)s;


-- name: lines
WITH line AS (
    SELECT movement.currency, movement.commission_rate_bps, movement.commission_tax_bps, {line}
    FROM money_movement AS movement
    WHERE organization_id = %(organization_id)s AND occurred_at >= %(starts_at)s AND occurred_at < %(ends_at)s
    GROUP BY movement.currency, movement.commission_rate_bps, movement.commission_tax_bps
), rounded AS (
    SELECT currency, commission_rate_bps, commission_tax_bps, {rounded_line} FROM line
)
SELECT currency, exponent, commission_rate_bps, commission_tax_bps, {join_amounts_1}
FROM rounded JOIN currency ON code = currency
WHERE (captures, refunds, chargebacks, fees) <> (0, 0, 0, 0)
ORDER BY currency, commission_rate_bps, commission_tax_bps;


-- name: entries
SELECT month, sequence, entry.currency, exponent, {join_amounts}, reason, posted_at
FROM ledger_entry AS entry JOIN currency ON code = entry.currency
WHERE organization_id = %(organization_id)s AND origin_month = %(month)s
    AND month = ANY (SELECT period.month FROM settlement_period AS period WHERE period.month >= %(month)s)
ORDER BY month, entry.currency, sequence;
