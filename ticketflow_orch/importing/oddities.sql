-- name: far_from_now
-- The columns of new rows whose instants are far from now, `cells` being each as (name, position, instant): nobody sold
-- through this platform before 2000, nor sells what is more than two years away.
SELECT "column", count(*) AS rows, min(line) AS line, min(value) AS earliest, max(value) AS latest
FROM linked_{table} CROSS JOIN LATERAL (VALUES {cells}) AS cell ("column", position, value)
WHERE present_id IS NULL
    AND (value < '2000-01-01T00:00:00Z'::timestamptz OR value > transaction_timestamp() + interval '2 years')
GROUP BY "column", position ORDER BY position;
