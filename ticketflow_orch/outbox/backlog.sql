-- name: backlog
-- What waits: by outbox_event_due_idx, one probe a type for the oldest, then one for each event that is counted. What
-- only a person can get on its way has no available_at.
WITH RECURSIVE kind (name) AS (
    (SELECT event_type FROM outbox_event WHERE ended_at IS NULL ORDER BY event_type LIMIT 1)
    UNION ALL
    SELECT (SELECT event_type FROM outbox_event WHERE ended_at IS NULL AND event_type > kind.name
        ORDER BY event_type LIMIT 1)
    FROM kind WHERE name IS NOT NULL
), oldest AS (
    SELECT min(first.available_at) AS due_since FROM kind CROSS JOIN LATERAL (
        SELECT available_at FROM outbox_event WHERE event_type = kind.name AND ended_at IS NULL
        ORDER BY available_at LIMIT 1
    ) AS first
), waiting AS (
    SELECT count(*) AS number FROM (SELECT FROM outbox_event WHERE ended_at IS NULL LIMIT {most}) AS counted
), aside AS (
    SELECT count(*) FILTER (WHERE state = 'DEAD') AS dead, count(*) FILTER (WHERE state = 'IN_DOUBT') AS in_doubt,
        count(*) FILTER (WHERE state = 'HELD') AS held
    FROM (
        SELECT state FROM kind JOIN outbox_event ON event_type = kind.name AND ended_at IS NULL
            AND available_at IS NULL
        LIMIT {most}
    ) AS counted
)
SELECT clock_timestamp() AS at, due_since, number AS waiting, dead, in_doubt, held FROM oldest, waiting, aside;


-- name: retried
-- The events that have failed for an hour and are tried again; what waits for those is not counted.
SELECT count(*) FROM (
    SELECT FROM outbox_event
    WHERE ended_at IS NULL AND state = 'PENDING' AND tried_since < clock_timestamp() - interval '1 hour'
    LIMIT {most}
) AS counted;
