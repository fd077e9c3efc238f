-- name: park
-- The month is the one after all that are closed or being closed, whenever the statement comes to be executed. Whom a
-- person has parked already is refused by parked_organization_by_hand.
INSERT INTO parked_organization (organization_id, month, reason, parked_by)
SELECT %(organization_id)s, coalesce((max(month) + interval '1 month')::date, %(first)s::date),
    %(reason)s, %(by)s::text || ' (role ' || session_user || ')'
FROM ({periods}) AS period WHERE state IN ('CLOSING', 'CLOSED')
ON CONFLICT (organization_id) WHERE resolved_at IS NULL AND reason IS NOT NULL DO NOTHING
RETURNING month, reason, parked_by, since;


-- name: lock_events
-- The events of what is requested for an organization, in key order, as everybody locks them.
SELECT event.id FROM payout JOIN outbox_event AS event ON dedupe_key = {event_key}
WHERE organization_id = %(organization_id)s::bigint AND payout.state = 'REQUESTED'
ORDER BY event.id FOR UPDATE OF event;


-- name: hold
-- Holds what cannot have arrived.
WITH waiting AS MATERIALIZED (
    SELECT payout.id, event.id AS outbox_id FROM payout JOIN outbox_event AS event ON dedupe_key = {event_key}
    WHERE organization_id = %(organization_id)s::bigint AND payout.state = 'REQUESTED'
        AND event.state = 'PENDING' AND event.doubtful_since IS NULL
    ORDER BY payout.id FOR UPDATE OF payout
), held AS (
    UPDATE payout SET state = 'HELD', reason = concat_ws('; ', reason, '{parked}')
    FROM waiting WHERE payout.id = waiting.id RETURNING payout.id
), stopped AS (
    {holding}
)
SELECT count(*) FROM held;


-- name: release
-- What a person had released before the parking goes on; what waited for a person when it began waits still.
WITH chosen AS MATERIALIZED (
    SELECT id, CASE WHEN reason <> '{parked}' THEN left(reason, -length('; {parked}')) END AS rest FROM payout
    WHERE organization_id = %(organization_id)s::bigint AND state = 'HELD'
        AND (reason = '{parked}' OR reason LIKE '%%; {parked}') AND NOT {is_parked}
    ORDER BY id FOR UPDATE
)
UPDATE payout SET reason = rest,
    state = CASE WHEN rest IS NULL OR decided_by IS NOT NULL THEN 'REQUESTED' ELSE 'HELD' END
FROM chosen WHERE payout.id = chosen.id
RETURNING public_id, month, state;
