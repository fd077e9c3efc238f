-- name: first_begun
-- The first month before `then` that has begun to be settled.
SELECT min(month) FROM (
    SELECT month FROM ({periods}) AS period UNION ALL SELECT month FROM settlement_pass
) AS begun
WHERE month < %(then)s::date;
