-- name: no_payment_is_open
-- A condition on `reservation`; by money_movement_reservation_id_idx.
(payment_started_at IS NULL OR EXISTS (
    SELECT FROM money_movement
    WHERE reservation_id = reservation.id AND kind = 'CAPTURE' AND NOT is_void
        AND occurred_at >= payment_started_at));


-- name: overdue
-- What a run takes, chunk by chunk, in the order of reservation_due_idx; ends in an open WHERE.
SELECT id, expires_at AS at FROM reservation WHERE {is_overdue};


-- name: due
-- A FROM clause that ends in an open WHERE: what is to be done now. All that is past its grace: what is not expired is
-- reported. Before that, one with money waits to be confirmed.
FROM reservation WHERE {is_overdue} AND NOT EXISTS (
    SELECT {kept_capture} AND {grace_began} > %(stuck_before)s::timestamptz);


-- name: expire
-- Expires reservations that are locked, reports those whose payment outlasted its grace, and announces both. Few are
-- left over, and those are looked at again; without MATERIALIZED all would be.
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


-- name: left
-- How many are due, up to a number. Everything that lies in the past seems due to the planner, which knows nothing of
-- what was expired long ago: left to itself it reads the whole table. Asked for the first few in the order of
-- reservation_due_idx, it takes that.
SELECT count(*) FROM (SELECT {due} ORDER BY expires_at, id LIMIT {left_counted}) AS due;


-- name: are_due
-- Whether one is due, or one that was left out is to be tried; ordered for the sake of reservation_due_idx, as `left`.
SELECT {any_to_try} OR count(*) > 0
FROM (SELECT {due} AND NOT {left_out} ORDER BY expires_at, id LIMIT 1) AS due;


-- name: oldest_due
-- Since when the first that is due and not left out has been, in the order of reservation_due_idx.
SELECT greatest(
    expires_at + %(delay)s::interval,
    CASE WHEN payment_started_at IS NOT NULL OR EXISTS (SELECT {kept_capture})
        THEN {grace_began} + %(grace)s::interval END)
FROM (
    SELECT id, expires_at, payment_started_at
    {due} AND NOT {left_out} ORDER BY expires_at, id LIMIT 1
) AS reservation;


-- name: would_expire
-- What expiring would do now, and the first reservations by name; locks nothing.
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
