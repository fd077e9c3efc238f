-- name: due_oldest
WITH {oldest}
SELECT EXISTS (SELECT FROM seen WHERE {is_lost})
    OR EXISTS (SELECT FROM seen WHERE state = 'PENDING' AND {is_head}) AS found,
    {full} AS full;


-- name: due_scattered
WITH RECURSIVE {heads}, visited AS MATERIALIZED (
    SELECT * FROM head LIMIT %(visited)s::bigint
)
SELECT (SELECT count(*) FROM visited) AS visited, last.*,
    EXISTS (SELECT FROM visited
        WHERE event_type = ANY (%(types)s::text[]) AND available_at <= statement_timestamp()
            AND (state = 'PENDING' OR {is_lost})) AS found
FROM (SELECT max(aggregate_type) AS last_type FROM visited) AS type CROSS JOIN LATERAL (
    SELECT type.last_type, max(aggregate_id) AS last_id FROM visited WHERE aggregate_type = type.last_type
) AS last;
