-- name: kept
-- An expression: the sum of a movement and of all that reverses it, or reverses that (money_movement_reverses_id_idx).
(WITH RECURSIVE chain (id, amount) AS (
    SELECT {movement}.id, {movement}.amount
    UNION ALL
    SELECT back.id, back.amount FROM chain JOIN money_movement AS back ON back.reverses_id = chain.id {by_then})
SELECT sum(amount) FROM chain);


-- name: kept_capture
-- By money_movement_reservation_id_idx.
FROM money_movement AS capture
WHERE capture.reservation_id = reservation.id AND kind = 'CAPTURE' AND NOT is_void AND {kept} > 0;


-- name: money_without_ticket
-- The table late_capture has every capture that came too late; those that were given back meanwhile are left out.
SELECT public_ref AS reservation, status, capture.external_ref AS movement, capture.currency, exponent,
    capture.amount, capture.recorded_at
FROM late_capture
JOIN money_movement AS capture ON capture.id = movement_id
JOIN reservation ON reservation.id = capture.reservation_id
JOIN currency ON code = capture.currency
WHERE {kept} > 0
ORDER BY capture.recorded_at, capture.id
LIMIT %(limit)s::bigint;
