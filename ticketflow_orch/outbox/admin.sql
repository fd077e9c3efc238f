-- name: shown
-- What a list shows of an event, under the names of the fields of `Event`.
event_id, event_type, aggregate_type, aggregate_id, state, attempts - attempts_forgiven AS attempts, occurred_at,
    available_at, last_attempt_at, ended_at, last_error;


-- name: chosen
-- The type and the id of the aggregate that somebody asks for, where they do.
(%(event_type)s::text IS NULL OR event_type = %(event_type)s::text)
    AND (%(aggregate)s::text IS NULL OR aggregate_id = %(aggregate)s::text);


-- name: unended
-- The oldest events that have not ended; those are few enough to be sorted.
SELECT {shown} FROM outbox_event
WHERE ended_at IS NULL AND {chosen}
ORDER BY occurred_at, id LIMIT %(limit)s::bigint;


-- name: of_state
-- The last events of a state. Whether a state is an end is said too, so that one of the partial indexes serves.
SELECT {shown} FROM outbox_event
WHERE state = %(state)s::text AND {chosen}
    AND (ended_at IS NULL) = (%(state)s::text NOT IN ('DELIVERED', 'SUPPRESSED'))
ORDER BY ended_at DESC, occurred_at DESC, id DESC LIMIT %(limit)s::bigint;


-- name: kept_back
-- What is suppressed for a reason that may pass; by outbox_event_reconsider_idx.
SELECT {shown} FROM outbox_event
WHERE reconsider_until > statement_timestamp()
ORDER BY id LIMIT %(limit)s::bigint;


-- name: show
-- All of one event, by its id; `attempt` counts every claim, forgiven ones too.
SELECT {shown}, payload, dedupe_key, attempts AS attempt, owner, lease_until, first_attempt_at, doubtful_since,
    last_response, destination, body, payload::text AS data
FROM outbox_event WHERE event_id = %(event_id)s::uuid;


-- name: dead
-- The dead events that are chosen, in the order of ids, as everything that takes several events. What is dead and not
-- ended has no available_at, so outbox_event_due_idx has it beside what waits.
SELECT id FROM outbox_event
WHERE state = 'DEAD' AND ended_at IS NULL AND available_at IS NULL
    AND aggregate_type <> ALL (%(others)s::text[])
    AND (%(event_ids)s::uuid[] IS NULL OR event_id = ANY (%(event_ids)s::uuid[]))
    AND (%(event_types)s::text[] IS NULL OR event_type = ANY (%(event_types)s::text[]))
    AND (%(since)s::timestamptz IS NULL OR last_attempt_at >= %(since)s::timestamptz)
ORDER BY id;


-- name: redrive
-- Dead events get a new budget of attempts and are due at once.
WITH dead AS MATERIALIZED ({dead} FOR UPDATE)
UPDATE outbox_event AS event
SET state = 'PENDING', available_at = clock_timestamp(), attempts_forgiven = attempts, tried_since = NULL, lost = 0
FROM dead WHERE event.id = dead.id
RETURNING event_id;


-- name: resolve
-- What a person says became of an event that is locked; sent again, it has a new budget of attempts.
UPDATE outbox_event
SET state = %(state)s::text, last_error = %(said)s::text,
    available_at = CASE WHEN %(state)s::text = 'PENDING' THEN clock_timestamp() END,
    ended_at = CASE WHEN %(state)s::text IN ('DELIVERED', 'SUPPRESSED') THEN clock_timestamp() END,
    attempts_forgiven = CASE WHEN %(state)s::text = 'PENDING' THEN attempts ELSE attempts_forgiven END,
    doubtful_since = CASE WHEN %(state)s::text IN ('PENDING', 'DEAD') THEN NULL ELSE doubtful_since END,
    reconsider_until = NULL,
    tried_since = CASE WHEN %(state)s::text = 'PENDING' THEN NULL ELSE tried_since END,
    lost = CASE WHEN %(state)s::text = 'PENDING' THEN 0 ELSE lost END
WHERE id = %(id)s;
