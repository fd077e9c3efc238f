-- name: count
SELECT event_type, state, count(*) AS events, min(occurred_at) AS since, max(last_error) AS error
FROM outbox_event WHERE {which}
GROUP BY event_type, state ORDER BY event_type, state;


-- name: ids
SELECT event_id FROM outbox_event WHERE {which} ORDER BY id;
