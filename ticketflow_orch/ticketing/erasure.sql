-- name: events_counted
SELECT count(*) FROM outbox_event WHERE ended_at IS NOT NULL AND {concerns_them};


-- name: events_gone
WITH gone AS (
    DELETE FROM outbox_event WHERE ended_at IS NOT NULL AND {concerns_them} RETURNING id
), attempted AS (
    DELETE FROM outbox_attempt USING gone WHERE outbox_id = gone.id
)
SELECT count(*) FROM gone;


-- name: left
SELECT event_id, CASE
    WHEN ended_at IS NULL THEN 'it is ' || state || ': deliver it, or drop it by `ticketflow outbox drop '
        || event_id || '`, and erase again'
    ELSE 'it is about a reservation that stays' END AS why
FROM outbox_event
WHERE (ended_at IS NULL AND {concerns_them})
    OR ({about} = ANY (%(staying)s::text[]) AND body IS NOT NULL)
ORDER BY id LIMIT 100;
