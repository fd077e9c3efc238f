-- name: line
-- What the movements of one rate come to, exactly; of `movement` (kind, amount, commission_rate_bps), grouped by its
-- rate.
sum(amount) * movement.commission_rate_bps * 0.0001 AS exact_commission,
coalesce(sum(amount) FILTER (WHERE kind = 'CAPTURE'), 0)::bigint AS captures,
coalesce(sum(amount) FILTER (WHERE kind = 'REFUND'), 0)::bigint AS refunds,
coalesce(sum(amount) FILTER (WHERE kind IN ('CHARGEBACK', 'CHARGEBACK_REVERSAL')), 0)::bigint AS chargebacks,
coalesce(sum(amount) FILTER (WHERE kind IN ('FEE', 'MANUAL')), 0)::bigint AS fees;


-- name: rounded_line
-- A line (with commission_tax_bps) rounded once, half-up on magnitude, and its tax likewise.
captures, refunds, chargebacks, fees,
round(exact_commission)::bigint AS commission,
round(round(exact_commission) * commission_tax_bps * 0.0001)::bigint AS commission_tax;


-- name: recomputed
-- Shape and order decide the plan, which reads the chunk's organizations in key order and of the movements only the
-- month's part of an index. The zero movement gives every active organization its row in its currency of the month; it
-- carries the organization's own rates, because there it seldom makes one more line to round.
time_window AS MATERIALIZED (
    SELECT * FROM unnest(
        %(timezones)s::text[], %(starts)s::timestamptz[], %(ends)s::timestamptz[]
    ) AS zone_window (timezone, starts_at, ends_at)
), line AS (
    SELECT organization.id AS organization_id, movement.currency,
        movement.commission_rate_bps, movement.commission_tax_bps, {line}
    FROM organization
    JOIN time_window USING (timezone)
    CROSS JOIN LATERAL (
        SELECT money_movement.currency, kind, amount, money_movement.commission_rate_bps,
            money_movement.commission_tax_bps
        FROM money_movement
        WHERE organization_id = organization.id
            AND occurred_at >= time_window.starts_at AND occurred_at < time_window.ends_at
            AND money_movement.id < {cutoff}
        UNION ALL
        SELECT {currency}, 'CAPTURE', 0,
            organization.commission_rate_bps, organization.commission_tax_bps
        WHERE joined_on < %(next_origin)s::date
            AND (left_on IS NULL OR left_on >= %(origin)s::date)
    ) AS movement
    WHERE organization.id {members}
    GROUP BY organization.id, movement.currency, movement.commission_rate_bps, movement.commission_tax_bps
), rounded AS (
    SELECT organization_id, currency, commission_rate_bps, commission_tax_bps, {rounded_line}
    FROM line
), recomputed AS (
    SELECT organization_id, currency,
        sum(captures)::bigint AS captures, sum(refunds)::bigint AS refunds, sum(chargebacks)::bigint AS chargebacks,
        sum(fees)::bigint AS fees, sum(commission)::bigint AS commission, sum(commission_tax)::bigint AS commission_tax,
        CAST(sum(captures) + sum(refunds) + sum(chargebacks) + sum(fees) - sum(commission) - sum(commission_tax)
            AS bigint) AS net
    FROM rounded
    GROUP BY organization_id, currency
);


-- name: difference
-- Posted in the months `posting_months`, which are named one by one because the ledger's key begins with them.
{recomputed}, posted AS (
    SELECT organization_id, currency, {sums},
        max(sequence) FILTER (WHERE month = %(month)s::date) AS last_sequence
    FROM ledger_entry
    WHERE month = ANY (%(posting_months)s::date[]) AND origin_month = %(origin)s::date
        AND organization_id {members}
    GROUP BY organization_id, currency
), difference AS (
    SELECT organization_id, currency, posted.organization_id IS NULL AS is_new, posted.last_sequence,
        {differences},
        ({recomputed_amounts}) <> ({posted_amounts}) AS differs
    FROM recomputed FULL JOIN posted USING (organization_id, currency)
);


-- name: post_first
-- For a pass that began when the ledger held nothing of the month. Without ON CONFLICT, which costs a sixth of a
-- settlement and has nothing to do here: the chunk is locked. Should somebody else post all the same, the key refuses.
WITH {recomputed}
INSERT INTO ledger_entry ({columns}, settlement_pass, run_id)
SELECT organization_id, %(month)s::date, currency, %(origin)s::date, 0, {amounts},
    %(pass)s::integer, %(run_id)s::text
FROM recomputed
ORDER BY organization_id, currency;


-- name: post_difference
-- Adds what the ledger lacks, with the next sequence of its key; counts what was written and what was looked at.
WITH {difference}, inserted AS (
    INSERT INTO ledger_entry ({columns}, reason, settlement_pass, run_id)
    SELECT organization_id, %(month)s::date, currency, %(origin)s::date, coalesce(last_sequence + 1, 0), {amounts},
        CASE WHEN is_new AND %(month)s::date = %(origin)s::date THEN NULL ELSE 'recomputed minus posted' END,
        %(pass)s::integer, %(run_id)s::text
    FROM difference
    WHERE differs OR (is_new AND %(month)s::date = %(origin)s::date)
    ORDER BY organization_id, currency
    ON CONFLICT ON CONSTRAINT ledger_entry_pkey DO NOTHING
    RETURNING reason IS NULL AS is_new
)
SELECT (SELECT count(*) FROM inserted WHERE is_new) AS rows_new,
    (SELECT count(*) FROM inserted WHERE NOT is_new) AS rows_adjusted,
    (SELECT count(*) FROM posted) AS rows_existing;
