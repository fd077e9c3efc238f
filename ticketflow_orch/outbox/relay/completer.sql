-- name: delivered
-- The usual end by itself, fenced by the number of the attempt: three arrays instead of thirteen; by the key.
UPDATE outbox_event AS event
SET state = 'DELIVERED', ended_at = clock_timestamp(), available_at = NULL, lease_until = NULL, owner = NULL,
    last_attempt_at = clock_timestamp(), last_error = NULL, last_response = mine.response, last_owner = event.owner
FROM unnest(%(ids)s::bigint[], %(attempts)s::integer[], %(responses)s::text[])
    AS mine (id, attempt, response)
WHERE event.id = mine.id AND event.attempts = mine.attempt AND event.state = 'INFLIGHT'
RETURNING event.id;


-- name: ended
-- All other ends, fenced likewise, and their attempts. A doubt that an earlier attempt left is not cleared by a later
-- one that was refused. What is held at its first attempt was not tried. What nothing reached keeps its turn: its
-- destination is left alone as a whole.
WITH done AS (
    UPDATE outbox_event AS event
    SET state = mine.state, owner = NULL, lease_until = NULL, last_attempt_at = clock_timestamp(), lost = 0,
        last_owner = event.owner,
        tried_since = CASE WHEN mine.outcome IS NULL THEN tried_since
            ELSE coalesce(tried_since, clock_timestamp() - make_interval(secs => mine.took)) END,
        attempts_forgiven = attempts_forgiven + (NOT mine.counts)::integer,
        available_at = CASE WHEN mine.state <> 'PENDING' THEN NULL
            ELSE {next_try} END,
        ended_at = CASE WHEN mine.state IN ('DELIVERED', 'SUPPRESSED') THEN clock_timestamp() END,
        first_attempt_at = CASE WHEN mine.state <> 'HELD' OR attempts > attempts_forgiven + 1 THEN first_attempt_at END,
        doubtful_since = CASE WHEN mine.doubt THEN coalesce(doubtful_since, clock_timestamp())
            WHEN NOT mine.doubt THEN NULL ELSE doubtful_since END,
        last_error = mine.reason, last_response = coalesce(mine.response, last_response),
        reconsider_until = mine.reconsider_until
    FROM unnest(%(ids)s::bigint[], %(attempts)s::integer[], %(states)s::text[],
            %(reasons)s::text[], %(responses)s::text[], %(wishes)s::float[],
            %(doubts)s::boolean[], %(count)s::boolean[], %(reconsider)s::timestamptz[],
            %(throttled)s::boolean[], %(destinations)s::text[], %(outcomes)s::text[],
            %(took)s::float[])
        AS mine (id, attempt, state, reason, response, wish, doubt, counts, reconsider_until, throttled, destination,
            outcome, took)
    WHERE event.id = mine.id AND event.attempts = mine.attempt AND event.state = 'INFLIGHT'
    RETURNING event.id, mine.attempt, mine.took, last_owner, mine.destination, mine.outcome, mine.reason, mine.response
), kept AS (
    INSERT INTO outbox_attempt (outbox_id, attempt, began_at, owner, destination, outcome, error, response)
    SELECT id, attempt, clock_timestamp() - make_interval(secs => took), last_owner, destination, outcome, reason,
        response
    FROM done WHERE outcome IS NOT NULL
    ON CONFLICT DO NOTHING
)
SELECT id FROM done;
