-- name: list
SELECT public_ref, event.external_ref, quantity, payment_started_at, stuck_reported_at,
    EXISTS (SELECT {kept_capture})
FROM reservation JOIN event ON event.id = event_id
WHERE reservation.status = 'ACTIVE' AND stuck_reported_at IS NOT NULL
ORDER BY reservation.id LIMIT %(limit)s::bigint;


-- name: capture
SELECT kept.external_ref
FROM reservation, LATERAL (SELECT external_ref {kept_capture} ORDER BY id LIMIT 1) AS kept
WHERE reservation.id = %(id)s;
