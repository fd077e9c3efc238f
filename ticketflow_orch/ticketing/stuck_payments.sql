-- name: list
-- Those that wait for a person; by reservation_stuck_idx.
SELECT public_ref AS reservation, event.external_ref AS event, quantity, payment_started_at,
    stuck_reported_at AS reported_at, EXISTS (SELECT {kept_capture}) AS captured
FROM reservation JOIN event ON event.id = event_id
WHERE reservation.status = 'ACTIVE' AND stuck_reported_at IS NOT NULL
ORDER BY reservation.id LIMIT %(limit)s::bigint;


-- name: capture
-- The first capture of a reservation of which anything is still here.
SELECT kept.external_ref
FROM reservation, LATERAL (SELECT external_ref {kept_capture} ORDER BY id LIMIT 1) AS kept
WHERE reservation.id = %(id)s;


-- name: announce
-- Announces a reservation that has been expired; after that, in a statement of its own, since what the database says
-- about its payment by a trigger comes first.
WITH expired AS (SELECT public_ref FROM reservation WHERE id = %(id)s)
{announce_expired};
