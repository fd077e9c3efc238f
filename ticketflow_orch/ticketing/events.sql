-- name: lock_orphans
-- The reservations that closing these events expires, locked in the order of their ids; by reservation_event_id_idx.
-- Without SKIP LOCKED a payment in progress could hold up the closing; what is skipped is left to the expiry.
SELECT array_agg(id) FROM (
    SELECT id FROM reservation
    WHERE event_id = ANY (%(ids)s::bigint[]) AND status = 'ACTIVE' AND payment_started_at IS NULL
        AND stuck_reported_at IS NULL
    ORDER BY id
    FOR UPDATE SKIP LOCKED
) AS orphan;


-- name: close
-- Closes events that are locked, expires their orphans, and announces both. What has changed its state meanwhile stays.
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


-- name: oldest_due
-- The first that is not left out, in the order of event_open_ends_at_idx.
SELECT max(ends_at) + %(grace)s::interval FROM (
    SELECT ends_at FROM event
    WHERE status = 'OPEN' AND ends_at < %(ended_before)s::timestamptz
        AND NOT {left_out}
    ORDER BY ends_at, id LIMIT 1
) AS oldest;


-- name: would_close
-- What closing would do now, and the first events by name; locks nothing.
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
