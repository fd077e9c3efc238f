-- name: id_of
-- By the unique key on the reference.
SELECT id FROM {table} WHERE {column} = %(reference)s;


-- name: events_of
-- Outbox events of aggregates: those that ended by outbox_event_told_idx, those that did not by
-- outbox_event_waiting_idx. One condition on both would scan the outbox.
SELECT occurred_at, {who}, event_type, outbox_event.state, dedupe_key,
    CASE outbox_event.state WHEN 'DELIVERED' THEN ended_at END, outbox_event.event_id::text, NULL
FROM {source} JOIN outbox_event ON aggregate_type = '{aggregate_type}' AND aggregate_id = {aggregate_id}
WHERE ended_at IS NOT NULL
UNION ALL
SELECT occurred_at, {who}, event_type, outbox_event.state, dedupe_key,
    CASE outbox_event.state WHEN 'DELIVERED' THEN ended_at END, outbox_event.event_id::text, NULL
FROM {source} JOIN outbox_event ON aggregate_type = '{aggregate_type}' AND aggregate_id = {aggregate_id}
WHERE ended_at IS NULL;


-- name: captures
-- What stands behind FROM: the captures of the reservations that are asked about.
(SELECT public_ref, external_ref FROM reservation_asked JOIN money_movement AS movement
    ON movement.reservation_id = reservation_asked.id AND kind = 'CAPTURE') AS capture;


-- name: on_reservations
-- The effects on the rows of reservation_asked: their own ends and reminders, and the outbox events of each. A reminder
-- has an event of its own, and one for each change that was announced.
SELECT expired_at AS at, public_ref AS who, 'expired' AS what, status AS state, public_ref AS key,
    NULL::timestamptz AS delivered_at, NULL::text AS event_id, expired_by AS run_id
FROM reservation_asked WHERE status = 'EXPIRED'
UNION ALL
SELECT reminder.created_at, public_ref, 'reminder', state, public_ref || '/' || kind || '/' || event_date,
    NULL, outbox_event_id::text, NULL
FROM reservation_asked JOIN reminder ON reservation_id = reservation_asked.id
UNION ALL
{expiries}
UNION ALL
{cancellations}
UNION ALL
SELECT occurred_at, public_ref, event_type, outbox_event.state, dedupe_key,
    CASE outbox_event.state WHEN 'DELIVERED' THEN ended_at END, outbox_event.event_id::text, NULL
FROM reservation_asked JOIN reminder ON reservation_id = reservation_asked.id
CROSS JOIN LATERAL (
    SELECT outbox_event_id AS mail_id
    UNION ALL
    SELECT {change_of_reminder} FROM generate_series(1, changes_told) AS number
) AS mail
CROSS JOIN LATERAL (
    SELECT * FROM outbox_event WHERE event_id = mail_id AND aggregate_type = 'reminder' LIMIT 1
) AS outbox_event
UNION ALL
{captures};


-- name: on_events
-- The effects on the rows of event_asked.
SELECT closed_at AS at, external_ref AS who, 'closed' AS what, status AS state, external_ref AS key,
    NULL::timestamptz AS delivered_at, NULL::text AS event_id, NULL::text AS run_id
FROM event_asked WHERE status = 'CLOSED'
UNION ALL
{closings};


-- name: on_reservation
-- All effects on one reservation, the latest first.
WITH reservation_asked AS (SELECT * FROM reservation WHERE id = %(id)s::bigint)
{on_reservations}
ORDER BY at DESC, who, what, key;


-- name: on_event
-- Reservations by reservation_event_id_idx.
WITH event_asked AS (SELECT * FROM event WHERE id = %(id)s::bigint),
    reservation_asked AS (SELECT * FROM reservation WHERE event_id = %(id)s::bigint)
{on_events} UNION ALL {on_reservations}
ORDER BY at DESC, who, what, key LIMIT %(limit)s::bigint;


-- name: on_organization
-- Events by event_organization_id_idx; those on their reservations are found by event.
WITH event_asked AS (SELECT * FROM event WHERE organization_id = %(id)s::bigint)
{on_events}
ORDER BY at DESC, who, what, key LIMIT %(limit)s::bigint;


-- name: posted
-- The last entries of an organization: the ledger's key begins with the month, so each month is searched by itself.
SELECT entry.*, exponent
FROM ({periods}) AS period
JOIN ledger_entry AS entry ON entry.month = period.month
JOIN currency ON code = entry.currency
WHERE organization_id = %(id)s::bigint
ORDER BY posted_at DESC LIMIT %(limit)s::bigint;
