-- name: without_row
SELECT external_ref, {currency_of_cast_month_as_date} AS currency, count(*) OVER () AS breaches
FROM organization
WHERE id BETWEEN %(low)s::bigint AND %(high)s::bigint
    AND joined_on < %(next_month)s::date AND (left_on IS NULL OR left_on >= %(month)s::date)
    AND NOT EXISTS (
        SELECT FROM ledger_entry AS entry
        WHERE (entry.month, entry.organization_id, entry.currency, entry.origin_month, entry.sequence)
            = (%(month)s::date, organization.id, {currency_of_cast_month_as_date},
                %(month)s::date, 0))
    AND NOT EXISTS (
        SELECT FROM parked_organization AS parked
        WHERE parked.organization_id = organization.id AND parked.month = %(month)s AND error IS NOT NULL
            AND resolved_at IS NULL)
ORDER BY id LIMIT %(examples)s;


-- name: residue
WITH {recomputed}
SELECT currency, trim_scale(sum(
    round(exact_commission) - exact_commission
    + round(round(exact_commission) * commission_tax_bps * 0.0001)
    - round(exact_commission) * commission_tax_bps * 0.0001)) AS residue
FROM line
GROUP BY currency;


-- name: parked
SELECT external_ref, {currency_of_cast_month_as_date} AS currency, coalesce(error, reason) AS why,
    count(*) OVER () AS breaches
FROM parked_organization JOIN organization ON organization.id = organization_id
WHERE month = %(month)s AND resolved_at IS NULL
    AND organization_id BETWEEN %(low)s::bigint AND %(high)s::bigint
ORDER BY organization_id LIMIT %(examples)s;


-- name: order
-- A cutoff was drawn from the sequence, or is what it gives next. Without a right to the sequence nobody can say what
-- that is.
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
