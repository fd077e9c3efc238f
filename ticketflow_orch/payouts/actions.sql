-- name: lock_event
SELECT id FROM outbox_event WHERE {event_of} FOR UPDATE;


-- name: lock
-- With fresh eyes: what committed while the event's lock was waited for is seen.
SELECT payout.id, public_id, payout.state, month, outbox_event.id AS event_id, outbox_event.state AS event_state,
    outbox_event.first_attempt_at, payout.provider_ref, EXISTS (
        SELECT FROM payout AS other
        WHERE other.state = 'CONFIRMED' AND other.provider_ref = payout.provider_ref AND other.id <> payout.id
    ) AS shares
FROM payout LEFT JOIN outbox_event ON {event_of}
WHERE public_id = %(reference)s::uuid FOR UPDATE OF payout;


-- name: ask_again
WITH chosen AS MATERIALIZED (
    SELECT payout.id, event.id AS outbox_id
    FROM payout JOIN outbox_event AS event ON dedupe_key = '{event_type}:' || public_id
    WHERE payout.state = 'IN_DOUBT' AND event.state IN ('IN_DOUBT', 'DEAD') AND {chosen}
    ORDER BY payout.id LIMIT %(size)s::bigint FOR UPDATE OF event, payout
), asked AS (
    UPDATE payout SET state = 'REQUESTED', decided_by = %(by)s FROM chosen WHERE payout.id = chosen.id
)
UPDATE outbox_event SET state = 'PENDING', available_at = clock_timestamp(), attempts_forgiven = attempts,
    tried_since = NULL, lost = 0,
    doubtful_since = CASE WHEN %(looked_up)s::boolean THEN doubtful_since END
FROM chosen WHERE outbox_event.id = outbox_id;


-- name: held
SELECT count(*) FROM payout WHERE state = 'HELD' AND {chosen};


-- name: release
WITH chosen AS MATERIALIZED (
    SELECT id FROM payout
    WHERE state = 'HELD' AND {chosen} AND (
        %(reference)s::uuid IS NOT NULL
        OR (decided_by IS NULL AND (anomalies_to IS NULL OR %(anomalies)s::boolean) AND NOT EXISTS (
            SELECT FROM parked_organization AS parked
            WHERE parked.organization_id = payout.organization_id AND resolved_at IS NULL)))
    ORDER BY id LIMIT %(size)s::bigint FOR UPDATE
)
UPDATE payout SET state = 'REQUESTED', decided_by = %(by)s FROM chosen WHERE payout.id = chosen.id
RETURNING public_id, month;


-- name: wake_events
-- What was held before its event was written gets it now; what was held after that has its event woken.
WITH asked AS (
    SELECT * FROM payout WHERE public_id = ANY (%(references)s::uuid[])
), woken AS (
    UPDATE outbox_event SET state = 'PENDING', available_at = clock_timestamp(), tried_since = NULL
    FROM asked WHERE dedupe_key = '{event_type}:' || public_id AND outbox_event.state = 'HELD'
)
{events};


-- name: accept
-- Those that held the payout; what came since, or is about a later month, holds another.
UPDATE movement_anomaly AS anomaly
SET accepted_to = anomalies_to, accepted_at = clock_timestamp(), accepted_by = %(by)s::text
FROM payout
WHERE public_id = ANY (%(references)s::uuid[]) AND anomaly.organization_id = payout.organization_id
    AND anomaly.currency = payout.currency AND latest_id < anomalies_to AND {open}
    AND {by_the_end_of_payout_month};


-- name: lock_events_of_parked
SELECT event.id FROM payout JOIN outbox_event AS event ON {event_of_payout}
WHERE organization_id = %(organization_id)s::bigint AND payout.state = 'REQUESTED'
ORDER BY event.id FOR UPDATE OF event;


-- name: hold_parked
WITH waiting AS MATERIALIZED (
    SELECT payout.id, event.id AS outbox_id FROM payout JOIN outbox_event AS event ON {event_of_payout}
    WHERE organization_id = %(organization_id)s::bigint AND payout.state = 'REQUESTED'
        AND event.state = 'PENDING' AND event.doubtful_since IS NULL
    ORDER BY payout.id FOR UPDATE OF payout
), held AS (
    UPDATE payout SET state = 'HELD', reason = concat_ws('; ', reason, '{parked}')
    FROM waiting WHERE payout.id = waiting.id RETURNING payout.id
), stopped AS (
    UPDATE outbox_event SET state = 'HELD', available_at = NULL FROM waiting WHERE outbox_event.id = outbox_id
)
SELECT count(*) FROM held;


-- name: release_parked
-- What a person had released before the parking goes on; what waited for a person when it began waits still.
WITH chosen AS MATERIALIZED (
    SELECT id, CASE WHEN reason <> '{parked}' THEN left(reason, -length('; {parked}')) END AS rest FROM payout
    WHERE organization_id = %(organization_id)s::bigint AND state = 'HELD'
        AND (reason = '{parked}' OR reason LIKE '%%; {parked}') AND NOT EXISTS (
            SELECT FROM parked_organization AS parked
            WHERE parked.organization_id = payout.organization_id AND resolved_at IS NULL)
    ORDER BY id FOR UPDATE
)
UPDATE payout SET reason = rest,
    state = CASE WHEN rest IS NULL OR decided_by IS NOT NULL THEN 'REQUESTED' ELSE 'HELD' END
FROM chosen WHERE payout.id = chosen.id
RETURNING public_id, month, state;
