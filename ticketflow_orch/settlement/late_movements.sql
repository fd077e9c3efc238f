-- name: reached
-- How far movements go, how far they were read, and what the sequence gives next. What is compared was committed before
-- the sequence is looked at.
SELECT coalesce((SELECT max(id) FROM money_movement), 0) AS largest_id,
    greatest((SELECT max(cutoff) FROM settlement_pass), (SELECT max(read_to) FROM ({read_months}) AS period), 0)
        AS largest_cutoff,
    1 + coalesce(pg_sequence_last_value(CAST('money_movement_id_seq' AS regclass)), 0) AS next_id;


-- name: changed_months
WITH {changed}
SELECT origin_month FROM (SELECT DISTINCT origin_month FROM watched) AS asked
WHERE EXISTS (SELECT FROM changed WHERE changed.origin_month = asked.origin_month);


-- name: plan_changed
INSERT INTO settlement_chunk (month, pass, origin_month, low_id, high_id, organizations)
{changed_chunks}
SELECT %(month)s::date, %(pass)s::integer, origin_month, low_id, high_id, organizations
FROM changed_chunk;
