-- name: lock
-- The rest of a query for `event`: what nobody else has locked, judged anew once it is. A head remains one meanwhile.
event.state = 'PENDING' AND event.available_at <= statement_timestamp()
LIMIT %(size)s::bigint FOR UPDATE OF event SKIP LOCKED;


-- name: take
-- Take events for the length of a lease; the attempt counts from here on.
UPDATE outbox_event AS event
SET state = 'INFLIGHT', owner = %(owner)s::text, attempts = event.attempts + 1,
    lease_until = clock_timestamp() + make_interval(secs => %(lease)s::float),
    first_attempt_at = coalesce(event.first_attempt_at, clock_timestamp()), doubtful_since = {doubtful_since},
    destination = CASE WHEN {doubtful_since} IS NULL THEN %(destination)s::text
        ELSE coalesce(event.destination, %(destination)s::text) END {also}
FROM {source}
WHERE event.id = {source}.id
RETURNING event.id, event_id, event.event_type, event.aggregate_type, event.aggregate_id,
    payload::text AS data, occurred_at, body, attempts, attempts - attempts_forgiven AS counted,
    extract(EPOCH FROM clock_timestamp() - doubtful_since)::float AS doubt, destination,
    extract(EPOCH FROM clock_timestamp() - tried_since)::float AS age, lost;


-- name: claim_seen
-- Claim heads among the oldest due events of each type, and name those that were lost; then by the key.
WITH {oldest}, head AS MATERIALIZED (
    SELECT id FROM seen WHERE state = 'PENDING' AND {is_head} {in_order}
), free AS MATERIALIZED (
    SELECT event.id FROM head JOIN outbox_event AS event USING (id) WHERE {lock}
), taken AS ({take})
SELECT taken.*, {is_full} AS is_full, lost.*
FROM (SELECT array_agg(id) AS lost_ids, array_agg(event_type) AS lost_types FROM seen WHERE {is_lost}) AS lost
LEFT JOIN taken ON true;


-- name: claim_scattered
-- Claim heads of the next aggregates, name those that were lost, and say how far that went; then by the key.
WITH RECURSIVE {heads}, visited AS MATERIALIZED (
    SELECT * FROM head LIMIT %(visited)s::bigint
), seen AS MATERIALIZED (
    SELECT * FROM visited
    WHERE event_type = ANY (%(types)s::text[]) AND visited.available_at <= statement_timestamp()
), free AS MATERIALIZED (
    SELECT event.id, event.aggregate_type, event.aggregate_id
    FROM seen JOIN outbox_event AS event USING (id) WHERE {lock}
), taken AS ({take})
SELECT taken.*, (SELECT count(*) FROM visited) AS visited, last.*, lost.*
FROM (SELECT array_agg(id) AS lost_ids, array_agg(event_type) AS lost_types FROM seen WHERE {is_lost}) AS lost
LEFT JOIN (
    SELECT aggregate_type AS last_type, aggregate_id AS last_id FROM (
        SELECT aggregate_type, aggregate_id FROM free
        WHERE (SELECT count(*) FROM free) >= %(size)s::bigint
        UNION ALL
        SELECT aggregate_type, aggregate_id FROM visited
        WHERE (SELECT count(*) FROM free) < %(size)s::bigint
    ) AS passed ORDER BY 1 DESC, 2 DESC LIMIT 1
) AS last ON true
LEFT JOIN taken ON true;


-- name: doubtful_if_lost
-- A lost attempt that shows no commit was never sent where one would have been written down.
coalesce(event.doubtful_since, CASE WHEN event.event_type <> ALL (%(committing)s::text[])
    THEN clock_timestamp() END);


-- name: claim_lost
-- Claim an event whose holder let the lease run out. Nobody can say how that attempt ended, only that it was made, and
-- by whom.
WITH found AS MATERIALIZED (
    SELECT id, attempts AS lost_attempt, owner AS lost_owner, destination AS lost_destination, lease_until AS ended
    FROM outbox_event WHERE id = %(id)s::bigint AND {is_lost} FOR UPDATE SKIP LOCKED
), kept AS (
    INSERT INTO outbox_attempt (outbox_id, attempt, ended_at, owner, destination, outcome, error)
    SELECT id, lost_attempt, ended, lost_owner, lost_destination, 'lost', 'Its relay went away with it.' FROM found
    ON CONFLICT DO NOTHING
) {take};


-- name: give_back
-- What was not sent was not tried, unless an earlier attempt ended or was lost; ended ones may all be forgiven by now.
-- A commit that was written down without our hearing of it leaves no doubt.
UPDATE outbox_event AS event
SET state = 'PENDING', owner = NULL, lease_until = NULL, attempts_forgiven = attempts_forgiven + 1,
    first_attempt_at = CASE WHEN last_attempt_at IS NOT NULL OR attempts > attempts_forgiven + 1
        THEN first_attempt_at END,
    doubtful_since = CASE WHEN mine.doubtful THEN doubtful_since END
FROM unnest(%(ids)s::bigint[], %(attempts)s::integer[], %(doubtful)s::boolean[])
    AS mine (id, attempt, doubtful)
WHERE event.id = mine.id AND attempts = mine.attempt AND state = 'INFLIGHT';
