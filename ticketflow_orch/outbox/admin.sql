-- name: unended
SELECT {columns} FROM outbox_event
WHERE ended_at IS NULL AND {chosen}
ORDER BY occurred_at, id LIMIT %(limit)s::bigint;


-- name: of_state
SELECT {columns} FROM outbox_event
WHERE state = %(state)s::text AND {chosen}
    AND (ended_at IS NULL) = (%(state)s::text NOT IN ('DELIVERED', 'SUPPRESSED'))
ORDER BY ended_at DESC, occurred_at DESC, id DESC LIMIT %(limit)s::bigint;


-- name: kept_back
SELECT {columns} FROM outbox_event
WHERE reconsider_until > statement_timestamp()
ORDER BY id LIMIT %(limit)s::bigint;


-- name: show
SELECT {columns}, payload, dedupe_key, attempts, owner, lease_until, first_attempt_at, doubtful_since,
    last_response, destination, body, payload::text AS data
FROM outbox_event WHERE event_id = %(event_id)s::uuid;


-- name: redrive
WITH dead AS MATERIALIZED ({dead} FOR UPDATE)
UPDATE outbox_event AS event
SET state = 'PENDING', available_at = clock_timestamp(), attempts_forgiven = attempts, tried_since = NULL, lost = 0
FROM dead WHERE event.id = dead.id
RETURNING event_id;
