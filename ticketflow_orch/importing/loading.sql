-- name: hold_events
-- Lock the events of new reservations: one that is closed while we insert would have their trigger refuse them.
WITH held AS MATERIALIZED (
    SELECT id FROM event
    WHERE id IN (SELECT event_id FROM linked_reservation WHERE present_id IS NULL AND status = 'ACTIVE' AND NOT faulty)
    ORDER BY id FOR SHARE
)
SELECT count(*) FROM held;


-- name: record
-- Write down the import, whose id its rows carry.
INSERT INTO data_import (source, organizations, events, reservations, money_movements, opening_balances)
VALUES (%(source)s::text, %(organizations)s::bigint, %(events)s::bigint,
    %(reservations)s::bigint, %(money_movements)s::bigint, %(opening_balances)s::bigint)
RETURNING id;


-- name: existing
-- How many rows of a kind are there already.
SELECT count(*) FROM linked_{table} WHERE present_id IS NOT NULL;


-- name: insert_organizations
-- Insert the organizations that are new, under the ids that they drew when they were staged.
INSERT INTO organization (id, external_ref, name, timezone, currency, commission_rate_bps, commission_tax_bps,
    joined_on, left_on, contact_email, locale, payouts_from, import_id)
SELECT id, external_ref, name, timezone, currency, commission_rate_bps, commission_tax_bps,
    joined_on, left_on, contact_email, locale, CAST(payouts_from || '-01' AS date),
    %(import_id)s::bigint
FROM linked_organization WHERE present_id IS NULL ORDER BY line;


-- name: insert_events
-- Insert the events that are new; a closed one counts as closed when it ended.
INSERT INTO event (id, public_id, external_ref, organization_id, title, status, starts_at, ends_at, timezone,
    venue, closed_at, import_id)
SELECT id, derived_id((SELECT id FROM installation), 'event', external_ref), external_ref, organization_id,
    title, status, starts_at, ends_at, timezone, venue, CASE status WHEN 'CLOSED' THEN ends_at END,
    %(import_id)s::bigint
FROM linked_event WHERE present_id IS NULL ORDER BY line;


-- name: insert_reservations
-- Insert the reservations that are new; an expired one counts as expired when its time was up.
INSERT INTO reservation (id, public_ref, event_id, buyer_email, quantity, status, created_at, expires_at,
    payment_started_at, confirmed_at, expired_at, import_id)
SELECT id, external_ref, event_id, buyer_email, quantity, status, created_at, expires_at,
    payment_started_at, confirmed_at, CASE status WHEN 'EXPIRED' THEN expires_at END,
    %(import_id)s::bigint
FROM linked_reservation WHERE present_id IS NULL ORDER BY line;


-- name: insert_money_movements
-- Insert the movements that are new, in one statement, because a movement may reverse one that comes later in the file.
-- The id, which tells the order of recording, is drawn here, under the table's lock, and takes the place of that by
-- which staged rows know each other.
WITH drawn AS MATERIALIZED (
    SELECT staged_id, nextval('money_movement_id_seq') AS id
    FROM (SELECT id AS staged_id FROM linked_money_movement WHERE present_id IS NULL ORDER BY line) AS fresh
)
INSERT INTO money_movement (id, external_ref, organization_id, reservation_id, kind, is_void, reverses_id,
    currency, amount, commission_rate_bps, commission_tax_bps, reason, occurred_at, import_id)
OVERRIDING SYSTEM VALUE
SELECT drawn.id, external_ref, organization_id, reservation_id, kind, is_void,
    coalesce(target.id, reverses_id), currency, amount, commission_rate_bps, commission_tax_bps, reason,
    occurred_at, %(import_id)s::bigint
FROM linked_money_movement AS linked
JOIN drawn ON drawn.staged_id = linked.id
LEFT JOIN drawn AS target ON target.staged_id = linked.reverses_id
ORDER BY drawn.id;


-- name: insert_opening_balances
-- Insert the opening balances that are new.
INSERT INTO opening_balance (id, organization_id, currency, amount, import_id)
SELECT id, organization_id, currency, amount, %(import_id)s::bigint
FROM linked_opening_balance WHERE present_id IS NULL ORDER BY line;
