-- name: close
WITH closed AS (
    UPDATE event SET status = 'CLOSED', closed_at = %(now)s::timestamptz
    WHERE id = ANY (%(ids)s::bigint[]) AND status = 'OPEN'
    RETURNING public_id
), expired AS (
    UPDATE reservation SET status = 'EXPIRED', expired_at = %(now)s::timestamptz, expired_by = %(run_id)s
    WHERE id = ANY (%(orphans)s::bigint[]) AND status = 'ACTIVE' AND {unpaid}
    RETURNING public_ref
), closed_announced AS ({announce_closed}), expired_announced AS ({announce_expired})
SELECT (SELECT count(*) FROM closed) AS closed, (SELECT count(*) FROM expired) AS expired;


-- name: oldest_due_event
-- The first in the order of the index that is not left out.
SELECT max(ends_at) + %(grace)s::interval FROM (
    SELECT ends_at FROM event
    WHERE status = 'OPEN' AND ends_at < %(ended_before)s::timestamptz
        AND NOT {is_left_out_closing}
    ORDER BY ends_at, id LIMIT 1
) AS oldest;


-- name: expire
-- Few are left over, and those are looked at again; without this all would be.
WITH expired AS (
    UPDATE reservation SET status = 'EXPIRED', expired_at = %(now)s::timestamptz, expired_by = %(run_id)s
    WHERE id = ANY (%(ids)s::bigint[]) AND status = 'ACTIVE' AND {unpaid} AND {no_payment_is_open}
    RETURNING id, public_ref
), left_over AS MATERIALIZED (
    SELECT unnest(%(ids)s::bigint[]) AS id EXCEPT SELECT id FROM expired
), stuck AS (
    UPDATE reservation SET stuck_reported_at = %(now)s::timestamptz
    FROM left_over
    WHERE reservation.id = left_over.id AND status = 'ACTIVE'
        AND {grace_began} <= %(stuck_before)s::timestamptz
    RETURNING public_ref, payment_started_at, expires_at
), expired_announced AS ({announce_expired}), stuck_announced AS ({announce_stuck})
SELECT (SELECT count(*) FROM expired) AS expired, (SELECT count(*) FROM stuck) AS stuck;


-- name: reservations_left
SELECT count(*) FROM (SELECT {due} {in_order} LIMIT {left_counted}) AS due;


-- name: reservations_are_due
SELECT {any_to_try_expiry} OR count(*) > 0
FROM (SELECT {due} AND NOT {is_left_out_expiry} {in_order} LIMIT 1) AS due;


-- name: oldest_due_reservation
SELECT greatest(
    expires_at + %(delay)s::interval,
    CASE WHEN payment_started_at IS NOT NULL OR EXISTS (SELECT {kept_capture})
        THEN {grace_began} + %(grace)s::interval END)
FROM (
    SELECT id, expires_at, payment_started_at
    {due} AND NOT {is_left_out_expiry} {in_order} LIMIT 1
) AS reservation;


-- name: money_without_ticket
SELECT public_ref AS reservation, status, capture.external_ref AS movement, capture.currency, exponent,
    capture.amount, capture.recorded_at
FROM late_capture
JOIN money_movement AS capture ON capture.id = movement_id
JOIN reservation ON reservation.id = capture.reservation_id
JOIN currency ON code = capture.currency
WHERE {kept_capture} > 0
ORDER BY capture.recorded_at, capture.id
LIMIT %(limit)s::bigint;


-- name: would_close
WITH due AS MATERIALIZED (
    SELECT id, external_ref, ends_at FROM event
    WHERE status = 'OPEN' AND ends_at < %(ended_before)s::timestamptz
)
SELECT (SELECT count(*) FROM due) AS events,
    (SELECT array_agg(external_ref ORDER BY ends_at, id) FROM (
        SELECT * FROM due ORDER BY ends_at, id LIMIT %(named)s::bigint) AS first) AS first,
    (SELECT count(*) FROM due JOIN reservation ON event_id = due.id
        WHERE reservation.status = 'ACTIVE' AND payment_started_at IS NULL AND stuck_reported_at IS NULL
            AND {unpaid}) AS reservations;


-- name: would_expire
WITH due AS MATERIALIZED (
    SELECT id, public_ref, expires_at, {unpaid} AND {no_payment_is_open} AS is_expired,
        {grace_began} <= %(stuck_before)s::timestamptz AS is_stuck
    FROM reservation WHERE {is_overdue}
), ending AS (
    SELECT * FROM due WHERE is_expired OR is_stuck
)
SELECT count(*) FILTER (WHERE is_expired) AS reservations, count(*) FILTER (WHERE NOT is_expired) AS stuck,
    (SELECT array_agg(public_ref ORDER BY expires_at, id) FROM (
        SELECT * FROM ending ORDER BY expires_at, id LIMIT %(named)s::bigint) AS first) AS first
FROM ending;
