-- name: balances
SELECT balance.*, exponent, external_ref, name, organization.timezone, locale, contact_email, starts_at, ends_at, (
        SELECT max(before.month) FROM organization_balance AS before
        WHERE before.organization_id = balance.organization_id AND before.month < %(month)s::date
    ) AS last_stated
FROM organization_balance AS balance
JOIN organization ON organization.id = organization_id
JOIN currency ON code = balance.currency
LEFT JOIN settlement_window AS month_window
    ON month_window.month = balance.month AND month_window.timezone = organization.timezone
WHERE balance.month = %(month)s::date AND organization_id = ANY (%(organizations)s::bigint[])
ORDER BY organization_id, balance.currency;


-- name: origins
WITH {covered}
SELECT covered.*, organization.timezone, starts_at
FROM covered
JOIN organization ON organization.id = organization_id
LEFT JOIN settlement_window ON month = origin_month AND settlement_window.timezone = organization.timezone
ORDER BY organization_id, covered.currency, origin_month;


-- name: lines
WITH {spans}, line AS (
    SELECT span.organization_id, span.currency, origin_month, sign, movement.commission_rate_bps,
        movement.commission_tax_bps, {line}
    FROM span
    CROSS JOIN LATERAL (VALUES
        (1, posted_to, recorded_to), (-1, posted_from, recorded_from)) AS side (sign, cutoff, recorded_before)
    JOIN money_movement AS movement ON movement.organization_id = span.organization_id
        AND movement.currency = span.currency AND occurred_at >= starts_at AND occurred_at < ends_at
        AND movement.id < side.cutoff AND movement.recorded_at < side.recorded_before
    GROUP BY span.organization_id, span.currency, origin_month, sign, movement.commission_rate_bps,
        movement.commission_tax_bps
), rounded AS (
    SELECT organization_id, currency, origin_month, sign, commission_rate_bps, commission_tax_bps, {rounded_line}
    FROM line
)
SELECT organization_id, currency, origin_month, commission_rate_bps, commission_tax_bps,
    {join_f_sum_sign_name_as_name_for_name_in__posted}
FROM rounded
GROUP BY organization_id, currency, origin_month, commission_rate_bps, commission_tax_bps
HAVING {join_f_sum_sign_name_0_for_name_in__posted}
ORDER BY organization_id, currency, origin_month, commission_rate_bps DESC, commission_tax_bps DESC;


-- name: movements
WITH {spans}
SELECT span.organization_id, span.currency, movement.external_ref, movement.kind, movement.is_void,
    target.external_ref AS reverses, movement.amount, movement.reason, movement.occurred_at
FROM span
JOIN money_movement AS movement ON movement.organization_id = span.organization_id
    AND movement.currency = span.currency AND movement.occurred_at >= starts_at AND movement.occurred_at < ends_at
    AND movement.id < posted_to AND movement.recorded_at < recorded_to
    AND (posted_from IS NULL OR movement.id >= posted_from OR movement.recorded_at >= recorded_from)
LEFT JOIN money_movement AS target ON target.id = movement.reverses_id
ORDER BY span.organization_id, span.currency, movement.occurred_at, movement.id;
