-- name: changed
-- Queues mails about a change for those whose last reminder says something else.
-- Of the reminders of a reservation the last one counts: it has said something, or is about to say what is so now,
-- which one of a date on which the event is no more never will. The one of the date on which the event is (`today`) is
-- the one that a notice belongs to; where it has not gone, it says so itself. What a notice says counts as said by all
-- of them. One to whom another run that looks at the same has written meanwhile gets no second mail.
WITH reminded AS MATERIALIZED (
    SELECT reminder.id, reservation_id, event_date, told_starts_at, told_venue, changes_told,
        told_starts_at IS NOT NULL AND (outbox_event.state = 'DELIVERED' OR doubtful_since IS NOT NULL) AS is_told
    FROM reservation
    JOIN reminder ON reservation_id = reservation.id AND reminder.state = 'QUEUED'
    JOIN outbox_event ON outbox_event.event_id = outbox_event_id
        AND (outbox_event.state NOT IN ('DEAD', 'SUPPRESSED') OR doubtful_since IS NOT NULL)
    WHERE reservation.event_id = %(event)s::bigint AND reservation.status = 'CONFIRMED'
), last AS (
    SELECT DISTINCT ON (reservation_id) * FROM reminded
    WHERE is_told OR event_date = %(event_date)s::date ORDER BY reservation_id, id DESC
), today AS (
    SELECT DISTINCT ON (reservation_id) reservation_id, id, changes_told FROM reminded
    WHERE is_told AND event_date = %(event_date)s::date ORDER BY reservation_id, id DESC
), otherwise AS MATERIALIZED (
    SELECT today.id, today.changes_told, last.reservation_id, public_ref, public_id, starts_at, venue
    FROM last
    JOIN today USING (reservation_id)
    JOIN reservation ON reservation.id = last.reservation_id
    JOIN event ON event.id = reservation.event_id
    WHERE is_told AND (told_starts_at, coalesce(told_venue, '')) <> (starts_at, coalesce(venue, ''))
        AND (starts_at <= %(last_day)s::timestamptz OR NOT EXISTS (
            SELECT FROM unnest(%(coming)s::text[]) AS coming (kind)
            LEFT JOIN reminder AS own ON own.reservation_id = last.reservation_id AND own.kind = coming.kind
                AND own.event_date = %(event_date)s::date
            WHERE own.id IS NULL))
    ORDER BY today.id LIMIT %(size)s::bigint
), told AS (
    UPDATE reminder AS one
    SET changes_told = one.changes_told + (one.id = otherwise.id)::integer,
        told_starts_at = otherwise.starts_at, told_venue = otherwise.venue
    FROM otherwise
    WHERE one.reservation_id = otherwise.reservation_id AND one.told_starts_at IS NOT NULL
        AND (one.id <> otherwise.id OR one.changes_told = otherwise.changes_told)
    RETURNING one.id, one.kind, one.event_date, one.changes_told AS number
), reminder AS (
    SELECT * FROM told WHERE id IN (SELECT id FROM otherwise)
), queued AS ({queue_changes})
SELECT count(*) FROM reminder;


-- name: on_the_way
-- Whether a reminder is being sent that may say what was so before, also where it is not noted yet what it says;
-- whether it reached anybody is known when that has ended.
SELECT EXISTS (
    SELECT FROM reservation
    JOIN reminder ON reservation_id = reservation.id AND reminder.state = 'QUEUED'
    JOIN outbox_event ON outbox_event.event_id = outbox_event_id AND outbox_event.state = 'INFLIGHT'
    JOIN event ON event.id = reservation.event_id
    WHERE reservation.event_id = %(event)s::bigint AND reservation.status = 'CONFIRMED'
        AND (told_starts_at IS NULL
            OR (told_starts_at, coalesce(told_venue, '')) <> (starts_at, coalesce(venue, ''))));


-- name: cancelled
-- Queues mails about a cancellation for the next ticket holders of the event who have none; by
-- reservation_event_id_idx.
WITH holders AS MATERIALIZED (
    SELECT public_ref, public_id, starts_at
    FROM reservation JOIN event ON event.id = event_id
    WHERE event_id = %(event)s::bigint AND confirmed_at IS NOT NULL
        AND (reservation.status = 'CONFIRMED'
            OR reservation.status = 'CANCELLED' AND cancelled_at >= %(since)s::timestamptz)
        AND NOT EXISTS (SELECT FROM outbox_event WHERE dedupe_key = {cancelled_key})
    ORDER BY reservation.id LIMIT %(size)s::bigint
), queued AS ({queue_cancellations})
SELECT count(*) FROM holders;
