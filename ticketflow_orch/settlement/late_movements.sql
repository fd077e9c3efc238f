-- name: reached
-- How far movements go, how far they were read, and what the sequence gives next. What is compared was committed before
-- the sequence is looked at.
SELECT coalesce((SELECT max(id) FROM money_movement), 0) AS largest_id,
    greatest((SELECT max(cutoff) FROM settlement_pass), (SELECT max(read_to) FROM ({read_months}) AS period), 0)
        AS largest_cutoff,
    1 + coalesce(pg_sequence_last_value(CAST('money_movement_id_seq' AS regclass)), 0) AS next_id;


-- name: before
-- The oldest movement from before the books that came since, by the order of recording, and the first month before them
-- in which somebody is parked.
SELECT (
    SELECT min(occurred_at) FROM money_movement
    WHERE id >= %(least)s::bigint AND id < %(cutoff)s::bigint AND occurred_at < %(starts_at)s::timestamptz
) AS oldest, (
    SELECT min(month) FROM parked_organization
    WHERE month < %(first)s::date AND error IS NOT NULL AND resolved_at IS NULL
) AS parked;


-- name: changed
-- The organizations that can have changed, by month: those with a movement that was not read, the parked, and in the
-- pass's own month those that are active and have no row. The bounds beside the joins are for the index on the order of
-- recording, which passes over the sales of later months.
watched AS MATERIALIZED (
    SELECT month_window.*, read_to
    FROM unnest(
        %(months)s::date[], %(timezones)s::text[], %(starts)s::timestamptz[], %(ends)s::timestamptz[]
    ) AS month_window (origin_month, timezone, starts_at, ends_at)
    JOIN unnest(%(read_months)s::date[], %(read_to)s::bigint[]) AS reading (origin_month, read_to)
        USING (origin_month)
), changed AS (
    SELECT origin_month, organization.id
    FROM money_movement
    JOIN organization ON organization.id = organization_id
    JOIN watched USING (timezone)
    WHERE money_movement.id >= %(least)s::bigint AND money_movement.id < %(cutoff)s::bigint
        AND occurred_at >= %(earliest)s::timestamptz AND occurred_at < %(latest)s::timestamptz
        AND money_movement.id >= watched.read_to
        AND occurred_at >= watched.starts_at AND occurred_at < watched.ends_at
    UNION ALL
    SELECT origin_month, organization_id
    FROM parked_organization
    JOIN organization ON organization.id = organization_id
    JOIN watched ON watched.origin_month = parked_organization.month
        AND watched.timezone = organization.timezone
    WHERE error IS NOT NULL AND resolved_at IS NULL
    UNION ALL
    SELECT %(own)s::date, id
    FROM organization
    WHERE %(own)s::date IS NOT NULL
        AND joined_on < %(after_own)s::date AND (left_on IS NULL OR left_on >= %(own)s::date)
        AND timezone = ANY (%(timezones)s::text[])
        AND NOT EXISTS (
            SELECT FROM ledger_entry AS entry
            WHERE entry.month = %(own)s::date AND entry.origin_month = %(own)s::date
                AND entry.sequence = 0 AND entry.organization_id = organization.id
                AND entry.currency = {currency})
);


-- name: changed_months
-- The months in which there is such an organization.
WITH {changed}
SELECT origin_month FROM (SELECT DISTINCT origin_month FROM watched) AS asked
WHERE EXISTS (SELECT FROM changed WHERE changed.origin_month = asked.origin_month);


-- name: changed_chunks
-- Such organizations, each once a month, cut into chunks of `size` of them.
WITH {changed}, numbered AS (
    SELECT origin_month, id,
        (row_number() OVER (PARTITION BY origin_month ORDER BY id) - 1) / %(size)s::bigint AS chunk
    FROM (SELECT DISTINCT origin_month, id FROM changed) AS each
), changed_chunk (origin_month, low_id, high_id, organizations) AS (
    SELECT origin_month, min(id), max(id), array_agg(id ORDER BY id) FROM numbered GROUP BY origin_month, chunk
);


-- name: plan_changed
-- The chunks of a pass that looks at such organizations only.
INSERT INTO settlement_chunk (month, pass, origin_month, low_id, high_id, organizations)
{changed_chunks}
SELECT %(month)s::date, %(pass)s::integer, origin_month, low_id, high_id, organizations
FROM changed_chunk;
