-- name: lock_event
-- By the key of the event: a relay locks an event first and its payout second, and so do decisions.
SELECT id FROM outbox_event WHERE dedupe_key = {event_key} FOR UPDATE;


-- name: lock
-- With fresh eyes: what committed while the event's lock was waited for is seen.
SELECT payout.id, public_id, payout.state, month, outbox_event.id AS event_id, outbox_event.state AS event_state,
    outbox_event.first_attempt_at, payout.provider_ref, {shares} AS shares
FROM payout LEFT JOIN outbox_event ON dedupe_key = {event_key}
WHERE public_id = %(reference)s::uuid FOR UPDATE OF payout;


-- name: move
-- One payout, by its key. What is decided about it once is kept unless something else is given.
UPDATE payout SET state = %(state)s::text, decided_by = %(by)s,
    reason = coalesce(%(reason)s::text, reason),
    provider_ref = coalesce(%(provider_ref)s::text, provider_ref),
    answered_at = CASE WHEN %(state)s::text IN ('CONFIRMED', 'REJECTED') THEN clock_timestamp() ELSE answered_at END
WHERE id = %(id)s;


-- name: chosen
-- The payouts that a Selection names; those of a state are found by payout_waiting_idx.
(%(reference)s::uuid IS NULL OR public_id = %(reference)s::uuid)
AND (%(month)s::date IS NULL OR month = %(month)s::date)
AND (%(currency)s::char(3) IS NULL OR currency = %(currency)s::char(3));


-- name: ask_again
-- A chunk of payouts in doubt and their events, locked in key order.
WITH chosen AS MATERIALIZED (
    SELECT payout.id, event.id AS outbox_id
    FROM payout JOIN outbox_event AS event ON dedupe_key = {event_key}
    WHERE payout.state = 'IN_DOUBT' AND event.state IN ('IN_DOUBT', 'DEAD') AND {chosen}
    ORDER BY payout.id LIMIT %(size)s::bigint FOR UPDATE OF event, payout
), asked AS (
    UPDATE payout SET state = 'REQUESTED', decided_by = %(by)s FROM chosen WHERE payout.id = chosen.id
)
{asking};


-- name: held
-- By payout_waiting_idx.
SELECT count(*) FROM payout WHERE state = 'HELD' AND {chosen};


-- name: release
-- A chunk of what is held, in key order. Of a month only what the review alone holds.
WITH chosen AS MATERIALIZED (
    SELECT id FROM payout
    WHERE state = 'HELD' AND {chosen} AND (
        %(reference)s::uuid IS NOT NULL
        OR (decided_by IS NULL AND (anomalies_to IS NULL OR %(anomalies)s::boolean) AND NOT {is_parked}))
    ORDER BY id LIMIT %(size)s::bigint FOR UPDATE
)
UPDATE payout SET state = 'REQUESTED', decided_by = %(by)s FROM chosen WHERE payout.id = chosen.id
RETURNING public_id, month;


-- name: accept
-- Accepts the anomalies that held a payout; what came since, or is about a later month, holds another.
UPDATE movement_anomaly AS anomaly
SET accepted_to = anomalies_to, accepted_at = clock_timestamp(), accepted_by = %(by)s::text
FROM payout
WHERE public_id = ANY (%(references)s::uuid[]) AND anomaly.organization_id = payout.organization_id
    AND anomaly.currency = payout.currency AND latest_id < anomalies_to AND {open}
    AND {by_the_end_of_month};
