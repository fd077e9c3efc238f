-- name: unbacked
-- What is in doubt may be asked for again. What a person released in spite of the parking still has it as its reason.
SELECT event_id, objection FROM (
    SELECT event_id, coalesce({objection}, CASE WHEN payout.state NOT IN ('REQUESTED', 'IN_DOUBT')
        THEN 'the payout is ' || payout.state END) AS objection,
        NOT coalesce(payout.reason, '') LIKE '%%{parked}' AND EXISTS (
            SELECT FROM parked_organization AS parked
            WHERE parked.organization_id = payout.organization_id AND {by_hand}) AS is_parked
    FROM {payout_of_event}
    WHERE event_id = ANY (%(event_ids)s::uuid[])
) AS asked
WHERE objection IS NOT NULL OR is_parked;


-- name: hold
-- The end of a parking waits for the lock on it, or has come first.
WITH waiting AS MATERIALIZED (
    SELECT payout.id, event.id AS outbox_id
    FROM unnest(%(ids)s::uuid[], %(attempts)s::integer[]) AS mine (event_id, attempt)
    JOIN outbox_event AS event ON event.event_id = mine.event_id AND event.attempts = attempt
    JOIN payout ON dedupe_key = 'PayoutRequested:' || public_id
    JOIN parked_organization AS parked ON parked.organization_id = payout.organization_id
    WHERE event.state = 'INFLIGHT' AND payout.state = 'REQUESTED' AND {by_hand}
    ORDER BY payout.id FOR UPDATE OF event, payout FOR SHARE OF parked
), held AS (
    UPDATE payout SET state = 'HELD', reason = concat_ws('; ', payout.reason, '{parked}')
    FROM waiting WHERE payout.id = waiting.id
)
UPDATE outbox_event SET state = 'HELD', available_at = NULL, owner = NULL, lease_until = NULL,
    attempts_forgiven = attempts_forgiven + 1,
    first_attempt_at = CASE WHEN attempts > attempts_forgiven + 1 THEN first_attempt_at END
FROM waiting WHERE outbox_event.id = outbox_id
RETURNING outbox_event.event_id;
