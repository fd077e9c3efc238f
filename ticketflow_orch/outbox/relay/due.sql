-- name: waiting
-- The types of all events that have not ended, one probe of outbox_event_due_idx each, and what people stopped.
WITH RECURSIVE kind (name) AS (
    (SELECT event_type FROM outbox_event WHERE ended_at IS NULL ORDER BY event_type LIMIT 1)
    UNION ALL
    SELECT (SELECT event_type FROM outbox_event WHERE ended_at IS NULL AND event_type > kind.name
        ORDER BY event_type LIMIT 1)
    FROM kind WHERE name IS NOT NULL
)
SELECT 'TYPE' AS what, name FROM kind WHERE name IS NOT NULL
UNION ALL
SELECT kind, name FROM delivery_stop;


-- name: oldest
-- The CTE `seen`: the oldest due events of each type, which take turns; by outbox_event_due_idx, for which the time of
-- the statement serves and the ever-changing clock does not. What is in flight would fill the window.
seen AS MATERIALIZED (
    SELECT due.*
    FROM unnest(%(types)s::text[]) AS kind (event_type) CROSS JOIN LATERAL (
        SELECT event_type, aggregate_type, aggregate_id, id, state, lease_until,
            row_number() OVER (ORDER BY available_at, id) AS turn
        FROM outbox_event
        WHERE event_type = kind.event_type AND ended_at IS NULL AND available_at <= statement_timestamp()
            AND (state = 'PENDING' OR lease_until < statement_timestamp())
        ORDER BY available_at, id LIMIT %(window)s::bigint
    ) AS due
    ORDER BY turn
);


-- name: may_block
-- What later events of its aggregate wait for.
ended_at IS NULL AND NOT (state = 'DEAD' AND event_type = ANY (%(skipping)s::text[]));


-- name: heads
-- The recursive CTE `head`: the first waiting event of each further aggregate, one probe of outbox_event_waiting_idx
-- each. Only that index has this order; with an equality the planner would go by the key through all ever delivered.
head (aggregate_type, aggregate_id, id, event_type, state, available_at, lease_until) AS (
    (SELECT aggregate_type, aggregate_id, id, event_type, state, available_at, lease_until FROM outbox_event
    WHERE {may_block} AND (aggregate_type, aggregate_id) > (%(after_type)s::text, %(after_id)s::text)
    ORDER BY aggregate_type, aggregate_id, id LIMIT 1)
    UNION ALL
    SELECT next.*
    FROM head AS last CROSS JOIN LATERAL (
        SELECT aggregate_type, aggregate_id, id, event_type, state, available_at, lease_until FROM outbox_event
        WHERE {may_block} AND (aggregate_type, aggregate_id) > (last.aggregate_type, last.aggregate_id)
        ORDER BY aggregate_type, aggregate_id, id LIMIT 1
    ) AS next
);


-- name: is_head
-- Whether nothing of its aggregate waits before a row of `seen`: backwards in outbox_event_waiting_idx, since what
-- waits, waits for its neighbour, and entries of what has ended lie further back.
(SELECT id FROM outbox_event AS earlier
WHERE {may_block} AND (aggregate_type, aggregate_id) >= (seen.aggregate_type, seen.aggregate_id)
    AND (aggregate_type, aggregate_id, id) < (seen.aggregate_type, seen.aggregate_id, seen.id)
ORDER BY aggregate_type DESC, aggregate_id DESC, id DESC LIMIT 1) IS NULL;


-- name: is_full
-- Whether `seen` has as many rows of a type as its window holds, so that more may wait behind them.
coalesce((SELECT bool_or(count >= %(window)s::bigint)
    FROM (SELECT count(*) AS count FROM seen GROUP BY event_type) AS counted), false);


-- name: is_lost
-- Whether the holder of an event let its lease run out.
state = 'INFLIGHT' AND lease_until < clock_timestamp();


-- name: due_oldest
-- Whether one of the oldest due events may go or is lost; and whether others may be hidden behind them.
WITH {oldest}
SELECT EXISTS (SELECT FROM seen WHERE {is_lost})
    OR EXISTS (SELECT FROM seen WHERE state = 'PENDING' AND {is_head}) AS found,
    {is_full} AS is_full;


-- name: due_scattered
-- The same of the heads of the next aggregates, and how far that went.
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
