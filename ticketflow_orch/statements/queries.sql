-- name: balances
-- The balances of these organizations, by organization_balance_pkey, each with what its statement says of the party.
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


-- name: covered
-- A CTE: what was posted since the balance before, by the month that it is about. Ledger and balances by their keys.
covered AS MATERIALIZED (
    SELECT balance.organization_id, balance.currency, previous_month, origin_month, {sums}
    FROM organization_balance AS balance
    JOIN ({periods}) AS period ON period.month <= %(month)s::date
        AND period.month > coalesce(previous_month::date, '-infinity'::date)
    JOIN ledger_entry AS entry ON entry.month = period.month AND entry.organization_id = balance.organization_id
        AND entry.currency = balance.currency
    WHERE balance.month = %(month)s::date AND balance.organization_id = ANY (%(organizations)s::bigint[])
    GROUP BY balance.organization_id, balance.currency, previous_month, origin_month
);


-- name: origins
-- What the ledger says about each month that a statement covers or adjusts.
WITH {covered}
SELECT covered.*, organization.timezone, starts_at
FROM covered
JOIN organization ON organization.id = organization_id
LEFT JOIN settlement_window ON month = origin_month AND settlement_window.timezone = organization.timezone
ORDER BY organization_id, covered.currency, origin_month;


-- name: spans
-- CTEs, the last of them `span`: up to where the movements of each month were read by the end of this month (posted_to)
-- and by the balance before (posted_from), by settlement_chunk_pkey. What came late and came to nothing, such as a sale
-- and its void, has no entry, and is behind the statement all the same.
{covered}, read_late AS (
    SELECT balance.organization_id, balance.currency, previous_month, chunk.origin_month
    FROM organization_balance AS balance
    JOIN settlement_chunk AS chunk ON chunk.origin_month < chunk.month AND chunk.state = 'DONE'
        AND chunk.month <= %(month)s::date
        AND chunk.month > coalesce(previous_month::date, '-infinity'::date)
        AND balance.organization_id BETWEEN low_id AND coalesce(high_id, balance.organization_id)
    WHERE balance.month = %(month)s::date AND balance.organization_id = ANY (%(organizations)s::bigint[])
), behind AS (
    SELECT organization_id, currency, previous_month, origin_month FROM covered
    UNION
    SELECT * FROM read_late
), span AS MATERIALIZED (
    SELECT covered.organization_id, covered.currency, covered.origin_month, starts_at, ends_at,
        max(cutoff) AS posted_to, max(coalesce(recorded_before, 'infinity')) AS recorded_to,
        max(cutoff) FILTER (WHERE chunk.month <= previous_month::date) AS posted_from,
        max(coalesce(recorded_before, 'infinity')) FILTER (WHERE chunk.month <= previous_month::date)
            AS recorded_from
    FROM behind AS covered
    JOIN organization ON organization.id = covered.organization_id
    JOIN settlement_window ON settlement_window.month = covered.origin_month
        AND settlement_window.timezone = organization.timezone
    JOIN settlement_chunk AS chunk ON chunk.origin_month = covered.origin_month AND chunk.state = 'DONE'
        AND chunk.month <= %(month)s::date AND chunk.low_id <= covered.organization_id
        AND (chunk.high_id IS NULL OR chunk.high_id >= covered.organization_id)
    JOIN settlement_pass ON settlement_pass.month = chunk.month AND settlement_pass.pass = chunk.pass
    GROUP BY covered.organization_id, covered.currency, covered.origin_month, starts_at, ends_at
);


-- name: lines
-- Lines by rate, rounded once each: of a month that an earlier statement covers, what has changed since. Movements are
-- found by money_movement_settlement_idx.
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
    {changes}
FROM rounded
GROUP BY organization_id, currency, origin_month, commission_rate_bps, commission_tax_bps
HAVING {any_change}
ORDER BY organization_id, currency, origin_month, commission_rate_bps DESC, commission_tax_bps DESC;


-- name: returns
-- Payouts whose money came back with the balances since the one before, by payout_organization_id_currency_month_key.
SELECT balance.organization_id, balance.currency, payout.month, amount, reason
FROM organization_balance AS balance
JOIN payout ON payout.organization_id = balance.organization_id AND payout.currency = balance.currency
    AND returned_month <= %(month)s::date
    AND returned_month > coalesce(previous_month::date, '-infinity'::date)
WHERE balance.month = %(month)s::date AND balance.organization_id = ANY (%(organizations)s::bigint[])
ORDER BY balance.organization_id, balance.currency, payout.month;


-- name: movements
-- The movements behind the lines, by money_movement_settlement_idx; read in portions, in the order of the statements.
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
