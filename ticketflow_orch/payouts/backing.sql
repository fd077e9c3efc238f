-- name: objection
-- Of a row of event, payout and organization: why the event does not ask for what its payout owes, or NULL.
CASE
    WHEN payout.id IS NULL THEN 'there is no such payout'
    WHEN aggregate_type <> '{aggregate}' OR dedupe_key <> {event_key} THEN 'it is not the event of its payout'
    WHEN event.body IS NOT NULL THEN 'it carries bytes that its payout does not say'
    WHEN NOT payload @> jsonb_build_object(
            'reference', public_id, 'organization', external_ref, 'month', to_char(month, 'YYYY-MM'),
            'currency', payout.currency, 'amount', amount)
        THEN 'the payout is of ' || amount || ' ' || payout.currency || ' to ' || external_ref || ' for '
            || to_char(month, 'YYYY-MM')
END;


-- name: is_parked
-- By parked_organization_by_hand and parked_organization_unresolved.
EXISTS (
    SELECT FROM parked_organization AS parked
    WHERE parked.organization_id = {organization_id} AND parked.resolved_at IS NULL);


-- name: unbacked
-- Asked before every attempt, by outbox_event_event_id_key. What is in doubt may be asked for again. What a person
-- released in spite of the parking still has it as its reason.
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
-- Holds what a relay has claimed and not sent. The end of a parking waits for the lock on it, or has come first.
WITH waiting AS MATERIALIZED (
    SELECT payout.id, event.id AS outbox_id
    FROM unnest(%(ids)s::uuid[], %(attempts)s::integer[]) AS mine (event_id, attempt)
    JOIN outbox_event AS event ON event.event_id = mine.event_id AND event.attempts = attempt
    JOIN payout ON dedupe_key = {event_key}
    JOIN parked_organization AS parked ON parked.organization_id = payout.organization_id
    WHERE event.state = 'INFLIGHT' AND payout.state = 'REQUESTED' AND {by_hand}
    ORDER BY payout.id FOR UPDATE OF event, payout FOR SHARE OF parked
), held AS (
    UPDATE payout SET state = 'HELD', reason = concat_ws('; ', payout.reason, '{parked}')
    FROM waiting WHERE payout.id = waiting.id
)
{taken_back};
