-- name: claim_scattered
WITH RECURSIVE {heads}, visited AS MATERIALIZED (
    SELECT * FROM head LIMIT %(visited)s::bigint
), seen AS MATERIALIZED (
    SELECT * FROM visited
    WHERE event_type = ANY (%(types)s::text[]) AND visited.available_at <= statement_timestamp()
), free AS MATERIALIZED (
    SELECT event.id, event.aggregate_type, event.aggregate_id
    FROM seen JOIN outbox_event AS event USING (id) WHERE {lock}
), taken AS ({taking_free})
SELECT taken.*, (SELECT count(*) FROM visited) AS visited, last.*, lost.*
FROM (SELECT array_agg(id) AS lost_ids, array_agg(event_type) AS lost_types FROM seen WHERE {is_lost}) AS lost
LEFT JOIN (
    SELECT aggregate_type AS last_type, aggregate_id AS last_id FROM (
        SELECT aggregate_type, aggregate_id FROM free
        WHERE (SELECT count(*) FROM free) >= %(size)s::bigint
        UNION ALL
        SELECT aggregate_type, aggregate_id FROM visited
        WHERE (SELECT count(*) FROM free) < %(size)s::bigint
    ) AS passed ORDER BY 1 DESC, 2 DESC LIMIT 1
) AS last ON true
LEFT JOIN taken ON true;


-- name: claim_lost
WITH found AS MATERIALIZED (
    SELECT id, attempts AS lost_attempt, owner AS lost_owner, destination AS lost_destination, lease_until AS ended
    FROM outbox_event WHERE id = %(id)s::bigint AND {is_lost} FOR UPDATE SKIP LOCKED
), kept AS (
    INSERT INTO outbox_attempt (outbox_id, attempt, ended_at, owner, destination, outcome, error)
    SELECT id, lost_attempt, ended, lost_owner, lost_destination, 'lost', 'Its relay went away with it.' FROM found
    ON CONFLICT DO NOTHING
) {taking_found};
