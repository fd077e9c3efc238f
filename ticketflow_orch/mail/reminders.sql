-- name: reservations
-- What reminders say, as it is now, for the reservations that are asked about; by their public_ref. `has_nearer`: a
-- reminder with less notice is queued for the same date.
SELECT asked.*, public_ref, reservation.status, buyer_email, quantity, event.status AS event_status, starts_at,
    event.timezone, title, venue, name, locale, contact_email, coalesce(changes_told, 0) AS changes_told,
    told_starts_at, told_venue, EXISTS (
        SELECT FROM reminder_kind AS own
        JOIN reminder_kind AS near ON near.lead < own.lead
        JOIN reminder AS nearer ON nearer.kind = near.kind
        WHERE own.kind = asked.kind AND nearer.reservation_id = reservation.id
            AND nearer.event_date = asked.event_date AND nearer.state = 'QUEUED'
    ) AS has_nearer
FROM unnest(%(references)s::text[], %(kinds)s::text[], %(dates)s::date[])
    AS asked (ref, kind, event_date)
JOIN reservation ON public_ref = asked.ref
JOIN event ON event.id = event_id
JOIN organization ON organization.id = event.organization_id
LEFT JOIN reminder ON reservation_id = reservation.id AND reminder.kind = asked.kind
    AND reminder.event_date = asked.event_date;
