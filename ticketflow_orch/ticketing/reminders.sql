-- name: note_told
-- What the mails about these reminders say, noted in the order of ids, as everything that locks several reminders.
WITH told AS MATERIALIZED (
    SELECT reminder.id, said.starts_at, said.venue
    FROM unnest(%(references)s::text[], %(kinds)s::text[], %(dates)s::date[],
        %(starts)s::timestamptz[], %(venues)s::text[]) AS said (ref, kind, event_date, starts_at, venue)
    JOIN reservation ON public_ref = said.ref
    JOIN reminder ON reservation_id = reservation.id AND reminder.kind = said.kind
        AND reminder.event_date = said.event_date
    ORDER BY reminder.id FOR UPDATE OF reminder
)
UPDATE reminder SET told_starts_at = told.starts_at, told_venue = told.venue FROM told WHERE reminder.id = told.id;


-- name: end_of_kinds
-- Forgets what was left out for the sake of a kind that is not there any more.
DELETE FROM bad_row WHERE job = '{job}' AND NOT EXISTS (
    SELECT FROM unnest(%(scopes)s::text[]) AS scope WHERE starts_with(row_key, scope));


-- name: next_reservations
-- The next reservations to look at, event by event (event_starts_at_idx), and of a large one those behind the last that
-- were taken (reservation_to_remind_idx): neither is read twice. All ids in one array, and where the last one stands.
SELECT array_agg(id) AS ids, max(starts_at) AS starts_at, (array_agg(event_id))[count(*)] AS event_id
FROM (
    SELECT coming.starts_at, coming.id AS event_id, held.id
    FROM (
        SELECT id, starts_at,
            CASE WHEN (starts_at, id) = (%(from_start)s::timestamptz, %(from_event)s::bigint)
                THEN %(from_reservation)s::bigint ELSE 0 END AS behind
        FROM event
        WHERE status IN ('OPEN', 'CLOSED') AND starts_at <= %(to_start)s::timestamptz
            AND (starts_at, id) >= (%(from_start)s::timestamptz, %(from_event)s::bigint)
        ORDER BY starts_at, id
    ) AS coming CROSS JOIN LATERAL (
        SELECT id FROM reservation
        WHERE event_id = coming.id AND status = 'CONFIRMED' AND id > coming.behind
            AND id <> ALL (%(left_out)s::bigint[])
        ORDER BY id LIMIT %(size)s::bigint
    ) AS held
    ORDER BY coming.starts_at, coming.id, held.id LIMIT %(size)s::bigint
) AS taken;


-- name: these_reservations
-- Those of the given reservations that are still to be looked at, in the same form.
SELECT array_agg(id) AS ids, max(starts_at) AS starts_at, (array_agg(event_id))[count(*)] AS event_id
FROM (
    SELECT starts_at, event_id, reservation.id
    FROM reservation JOIN event ON event.id = event_id
    WHERE reservation.id = ANY (%(only)s::bigint[]) AND reservation.status = 'CONFIRMED'
        AND event.status IN ('OPEN', 'CLOSED') AND {within}
    ORDER BY starts_at, event_id, reservation.id
) AS taken;


-- name: timezones_within
-- The time zones of the events within the horizon; by event_starts_at_idx.
SELECT DISTINCT timezone FROM event WHERE status IN ('OPEN', 'CLOSED') AND {within} ORDER BY timezone;


-- name: events_in_zones
-- The events within the horizon in these time zones; by event_starts_at_idx.
SELECT id, external_ref, timezone FROM event
WHERE status IN ('OPEN', 'CLOSED') AND timezone = ANY (%(timezones)s::text[]) AND {within}
ORDER BY starts_at, id;


-- name: any_to_try
-- Whether a row that was left out is to be tried again.
SELECT {any_to_try};


-- name: local_day
-- A CTE: the days in each time zone that an event within the horizon can start on, cut by Python.
local_day AS MATERIALIZED (
    SELECT * FROM unnest(
        %(timezones)s::text[], %(days)s::date[], %(starts)s::timestamptz[], %(ends)s::timestamptz[]
    ) AS day (timezone, event_date, begins, ends)
);


-- name: coming
-- A FROM clause: events with their local day (a CTE) and `due_at`, when the kind is due for them.
FROM event
CROSS JOIN LATERAL (SELECT {due_at} AS due_at) AS due
JOIN local_day ON local_day.timezone = event.timezone AND starts_at >= begins AND starts_at < local_day.ends;


-- name: undecided
-- A FROM and WHERE: the reservations whose reminder of a kind is to be decided now, which needs `local_day`.
{coming} JOIN reservation ON event_id = event.id AND reservation.status = 'CONFIRMED'
WHERE {may_be_due}
    AND ({bought} <= %(quiet_since)s::timestamptz OR starts_at <= %(now)s::timestamptz)
    AND event.status IN ('OPEN', 'CLOSED') AND {within}
    AND NOT EXISTS (
        SELECT FROM reminder
        WHERE reservation_id = reservation.id AND kind = %(kind)s::text
            AND reminder.event_date = local_day.event_date);


-- name: is_undecided
-- Whether any is to be decided; an event in an unknown zone counts too.
WITH {local_day}
SELECT %(any_left_out)s::boolean OR EXISTS (SELECT {undecided} AND NOT {left_out});


-- name: oldest_undecided
-- Since when the one that has waited longest could have been decided: when it was due and the quiet was over.
WITH {local_day}
SELECT min(greatest(
    coalesce(due_at, starts_at - %(lead)s::interval),
    least({bought} + %(quiet)s::interval, starts_at)))
{undecided} AND NOT {left_out};


-- name: undecided_count
-- How many are to be decided.
WITH {local_day}
SELECT count(*) {undecided} AND NOT {left_out};


-- name: remind
-- Decides about the reminders of these reservations: one row each, which the unique key makes once, and an event for
-- each that is queued. A buyer within the quiet until the start could not have been reminded in time, so that is no
-- reminder missed. The events of what is chosen are looked up one by one (the first OFFSET 0): joined, all events of the
-- next day would be read for each chunk. The second keeps a reference from being made anew wherever it is used.
WITH {local_day}, chosen AS MATERIALIZED (
    SELECT reservation.id, public_ref, {bought} AS bought, coming.*
    FROM reservation CROSS JOIN LATERAL (
        SELECT public_id, starts_at, event_date, due_at, starts_at - %(quiet)s::interval AS quiet_from
        {coming} WHERE event.id = event_id AND {may_be_due} OFFSET 0
    ) AS coming
    WHERE reservation.id = ANY (%(ids)s::bigint[]) AND reservation.status = 'CONFIRMED'
        AND NOT EXISTS (
            SELECT FROM reminder
            WHERE reservation_id = reservation.id AND kind = %(kind)s::text
                AND reminder.event_date = coming.event_date)
), decided AS MATERIALIZED (
    SELECT *, CASE WHEN state = 'QUEUED' THEN {event_id} END AS outbox_event_id
    FROM (
        SELECT id, public_ref, public_id, starts_at, event_date, {reference} AS reference,
            CASE
                WHEN due_at IS NULL OR bought > due_at OR bought >= quiet_from THEN 'SKIPPED'
                WHEN starts_at <= %(now)s::timestamptz THEN 'MISSED'
                WHEN cardinality(%(nearer)s::text[]) > 0 AND EXISTS (
                    SELECT FROM reminder AS nearer
                    WHERE reservation_id = chosen.id AND nearer.kind = ANY (%(nearer)s::text[])
                        AND nearer.event_date = chosen.event_date AND nearer.state = 'QUEUED') THEN 'SKIPPED'
                ELSE 'QUEUED'
            END AS state
        FROM chosen WHERE bought <= %(quiet_since)s::timestamptz OR starts_at <= %(now)s::timestamptz
        OFFSET 0
    ) AS called
), reminded AS (
    INSERT INTO reminder (reservation_id, kind, event_date, state, outbox_event_id)
    SELECT id, %(kind)s::text, event_date, state, outbox_event_id FROM decided ORDER BY id
), queued AS ({queue_events})
SELECT state, count(*) AS reminders FROM decided GROUP BY state;
