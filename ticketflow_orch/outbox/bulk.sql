-- name: which
-- The events that somebody chose, but those of aggregates about which other commands decide.
ended_at IS NULL AND state = ANY (%(states)s::text[])
    AND aggregate_type <> ALL (%(others)s::text[])
    AND (%(event_type)s::text IS NULL OR event_type = %(event_type)s::text)
    AND (%(older_than)s::interval IS NULL OR occurred_at < clock_timestamp() - %(older_than)s::interval)
    AND (%(error)s::text IS NULL OR position(lower(%(error)s::text) IN lower(last_error)) > 0);


-- name: count
-- How many they are, for a person to agree to.
SELECT event_type, state, count(*) AS events, min(occurred_at) AS since, max(last_error) AS error
FROM outbox_event WHERE {which}
GROUP BY event_type, state ORDER BY event_type, state;


-- name: ids
-- Which they are, in the order in which everything takes several events.
SELECT event_id FROM outbox_event WHERE {which} ORDER BY id;
