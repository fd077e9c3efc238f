-- name: without_row
-- Active organizations that lack their settlement row, each asked for by the ledger's key; the parked aside.
SELECT external_ref, {currency} AS currency, count(*) OVER () AS breaches
FROM organization
WHERE id BETWEEN %(low)s::bigint AND %(high)s::bigint
    AND joined_on < %(next_month)s::date AND (left_on IS NULL OR left_on >= %(month)s::date)
    AND NOT EXISTS (
        SELECT FROM ledger_entry AS entry
        WHERE (entry.month, entry.organization_id, entry.currency, entry.origin_month, entry.sequence)
            = (%(month)s::date, organization.id, {currency}, %(month)s::date, 0))
    AND NOT EXISTS (
        SELECT FROM parked_organization AS parked
        WHERE parked.organization_id = organization.id AND parked.month = %(month)s AND error IS NOT NULL
            AND resolved_at IS NULL)
ORDER BY id LIMIT %(examples)s;


-- name: residue
-- By how much the rounded lines differ from the exact ones.
WITH {recomputed}
SELECT currency, trim_scale(sum(
    round(exact_commission) - exact_commission
    + round(round(exact_commission) * commission_tax_bps * 0.0001)
    - round(exact_commission) * commission_tax_bps * 0.0001)) AS residue
FROM line
GROUP BY currency;


-- name: parked
-- Who is parked in a month, and why.
SELECT external_ref, {currency} AS currency, coalesce(error, reason) AS why,
    count(*) OVER () AS breaches
FROM parked_organization JOIN organization ON organization.id = organization_id
WHERE month = %(month)s AND resolved_at IS NULL
    AND organization_id BETWEEN %(low)s::bigint AND %(high)s::bigint
ORDER BY organization_id LIMIT %(examples)s;


-- name: order
-- How movements get their ids. A cutoff was drawn from the sequence, or is what it gives next; without a right to the
-- sequence nobody can say what that is.
SELECT attidentity AS identity, coalesce(sequence.oid = owned::regclass, false) AS owned,
    coalesce(seqcache, 1) AS cache, coalesce(seqincrement, 1) AS increment, coalesce(seqcycle, false) AS cycles,
    CASE WHEN has_sequence_privilege(sequence.oid, 'USAGE, SELECT') THEN coalesce((
        SELECT last_value + 1 FROM pg_sequences
        WHERE schemaname = relnamespace.nspname AND sequencename = 'money_movement_id_seq'), 1) END AS next_id,
    coalesce((SELECT max(id) FROM money_movement), 0) AS largest_id,
    greatest((SELECT max(cutoff) FROM settlement_pass), (SELECT max(read_to) FROM ({read_months}) AS period), 0)
        AS largest_cutoff
FROM pg_attribute
CROSS JOIN LATERAL pg_get_serial_sequence('money_movement', 'id') AS owned
LEFT JOIN pg_class AS sequence ON sequence.relname = 'money_movement_id_seq' AND sequence.relkind = 'S'
    AND pg_table_is_visible(sequence.oid)
LEFT JOIN pg_namespace AS relnamespace ON relnamespace.oid = sequence.relnamespace
LEFT JOIN pg_sequence ON seqrelid = sequence.oid
WHERE attrelid = CAST('money_movement' AS regclass) AND attname = 'id';


-- name: ahead
-- Chunks about the month that a pass has done beyond what counts as read, since it was given up or is still running.
ahead AS MATERIALIZED (
    SELECT low_id, coalesce(high_id, {largest_id}) AS high_id, organizations, cutoff,
        coalesce(recorded_before, 'infinity') AS recorded_before
    FROM settlement_pass JOIN settlement_chunk AS chunk USING (month, pass)
    WHERE chunk.origin_month = %(origin)s::date AND chunk.state = 'DONE' AND cutoff > %(cutoff)s::bigint
);


-- name: as_read
-- Up to which movement the row `organization` was read.
coalesce((
    SELECT max(ahead.cutoff) FROM ahead
    WHERE organization.id BETWEEN ahead.low_id AND ahead.high_id
        AND (ahead.organizations IS NULL OR organization.id = ANY (ahead.organizations))), %(cutoff)s::bigint);


-- name: as_read_by_clock
-- The same, and the condition on `recorded_at` that such a pass read by.
{as_read} AND recorded_at < coalesce((
    SELECT max(ahead.recorded_before) FROM ahead
    WHERE organization.id BETWEEN ahead.low_id AND ahead.high_id
        AND (ahead.organizations IS NULL OR organization.id = ANY (ahead.organizations))), 'infinity');


-- name: dishonest
-- Whose entries are not what their movements come to; recomputed as a pass does, and compared by the ledger's key.
WITH {ahead}, {difference}
SELECT coalesce(external_ref, 'id ' || organization_id) AS external_ref, difference.currency, {amounts}, (
        SELECT coalesce(sum(entry.net), 0) FROM ledger_entry AS entry
        WHERE entry.organization_id = difference.organization_id AND entry.currency = difference.currency
            AND entry.month = ANY (%(posting_months)s::date[])
            AND entry.origin_month = %(origin)s::date
    ) AS posted_net,
    count(*) OVER () AS breaches
FROM difference LEFT JOIN organization ON organization.id = organization_id
WHERE differs
ORDER BY organization_id LIMIT %(examples)s;


-- name: before_the_first
-- The months before the first period that movements or entries may lie in. Movements of the days around an edge count
-- for both months: the zones decide, and a month too many is no harm.
SELECT DISTINCT date_trunc('month', day AT TIME ZONE 'UTC')::date AS month
FROM money_movement
CROSS JOIN LATERAL (VALUES (occurred_at - interval '1 day'), (occurred_at + interval '1 day')) AS around (day)
WHERE occurred_at < %(first)s::timestamptz + interval '1 day'
    AND organization_id BETWEEN %(low)s::bigint AND %(high)s::bigint
UNION
SELECT DISTINCT origin_month::date FROM ledger_entry
WHERE month = ANY (%(periods)s::date[]) AND origin_month < %(first)s::date
    AND organization_id BETWEEN %(low)s::bigint AND %(high)s::bigint;
