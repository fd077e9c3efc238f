-- name: on_reservation
WITH held AS (SELECT * FROM reservation WHERE id = %(id)s::bigint)
{to_reservations}
ORDER BY 1 DESC, 2, 3, 5;


-- name: on_event
WITH happening AS (SELECT * FROM event WHERE id = %(id)s::bigint),
    held AS (SELECT * FROM reservation WHERE event_id = %(id)s::bigint)
{to_events} UNION ALL {to_reservations}
ORDER BY 1 DESC, 2, 3, 5 LIMIT %(limit)s::bigint;


-- name: on_organization
WITH happening AS (SELECT * FROM event WHERE organization_id = %(id)s::bigint)
{to_events}
ORDER BY 1 DESC, 2, 3, 5 LIMIT %(limit)s::bigint;
