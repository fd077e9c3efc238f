-- name: note
-- A row that a job leaves out: a new break, or the one that lasts, tried again. By the primary key.
INSERT INTO bad_row (job, row_key, name, error, since, tried_at)
VALUES (%(job)s, %(key)s, %(name)s, %(error)s, %(now)s::timestamptz, %(now)s::timestamptz)
ON CONFLICT (job, row_key) DO UPDATE
    SET name = excluded.name, error = excluded.error, tried_at = excluded.tried_at;


-- name: to_alert
-- Marks a row as alerted, once in its break; no row where it is already, is met for the first time and is not to be
-- alerted at once, or so many of the job's rows are alerted already.
UPDATE bad_row SET alerted_at = clock_timestamp()
WHERE job = %(job)s AND row_key = %(key)s AND alerted_at IS NULL
    AND (%(at_once)s::boolean OR tried_at <> since)
    AND (
        SELECT count(*) FROM bad_row AS other WHERE other.job = %(job)s AND other.alerted_at IS NOT NULL
    ) < %(most)s;


-- name: left_out
-- The first rows that each job leaves out, the oldest break first, and how many others there are. Reads the whole
-- table, which holds what is left out and nothing else.
SELECT job, name, error, since, total - %(most)s::bigint AS more FROM (
    SELECT job, name, error, since, count(*) OVER (PARTITION BY job) AS total,
        row_number() OVER (PARTITION BY job ORDER BY since, name) AS place
    FROM bad_row
) AS numbered
WHERE place <= %(most)s::bigint
ORDER BY job, place;


-- name: is_left_out
-- A condition: whether the job leaves out the row whose id is `key`, SQL of a text. By the primary key.
EXISTS (SELECT FROM bad_row WHERE job = '{job}' AND row_key = CAST({key} AS text));


-- name: any_to_try
-- A condition: whether the job leaves out a row that it has not tried since the bind `tried_before`.
EXISTS (SELECT FROM bad_row WHERE job = '{job}' AND tried_at <= %(tried_before)s::timestamptz);
