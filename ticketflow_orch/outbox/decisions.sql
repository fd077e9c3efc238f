-- name: decide
-- One event, by its key. What ends here says since when.
UPDATE outbox_event SET state = %(state)s::text, available_at = NULL,
    ended_at = CASE WHEN %(state)s::text IN ('DELIVERED', 'SUPPRESSED') THEN clock_timestamp() END
WHERE id = %(id)s;


-- name: wake
-- Found by the unique key of `dedupe_key`. How long it was tried before it was held does not count.
UPDATE outbox_event SET state = 'PENDING', available_at = clock_timestamp(), tried_since = NULL
FROM {source} WHERE dedupe_key = {dedupe_key} AND outbox_event.state = 'HELD';


-- name: ask_again
-- Attempts stay counted, since answers are fenced by them; those so far are forgiven.
UPDATE outbox_event SET state = 'PENDING', available_at = clock_timestamp(), attempts_forgiven = attempts,
    tried_since = NULL, lost = 0, doubtful_since = CASE WHEN {keep_doubt} THEN doubtful_since END
FROM {source} WHERE outbox_event.id = outbox_id;


-- name: hold
-- Events that wait; what a relay has claimed is taken back instead.
UPDATE outbox_event SET state = 'HELD', available_at = NULL FROM {source} WHERE outbox_event.id = outbox_id;


-- name: take_back
-- The attempt that was not made is forgiven, and where it would have been the first there was none.
UPDATE outbox_event SET state = 'HELD', available_at = NULL, owner = NULL, lease_until = NULL,
    attempts_forgiven = attempts_forgiven + 1,
    first_attempt_at = CASE WHEN attempts > attempts_forgiven + 1 THEN first_attempt_at END
FROM {source} WHERE outbox_event.id = outbox_id
RETURNING outbox_event.event_id;
