-- name: jobs
-- By one probe of job_execution's primary key a job.
RECURSIVE known (job) AS (
    (SELECT job FROM job_execution ORDER BY job LIMIT 1)
    UNION ALL
    SELECT (SELECT job FROM job_execution WHERE job > known.job ORDER BY job LIMIT 1)
    FROM known WHERE job IS NOT NULL
);


-- name: run_times
-- How long the completed windows of a day took, by job and bucket; by the primary key of job_execution.
WITH {jobs}
SELECT known.job AS label, width_bucket(took.seconds, %(edges)s::float[]) AS bucket, count(*) AS number,
    sum(took.seconds) AS seconds
FROM known
JOIN job_execution AS done ON done.job = known.job
    AND idempotency_key >= %(from_key)s AND idempotency_key < %(to_key)s
    AND state = 'COMPLETED' AND finished_at >= %(since)s::timestamptz
CROSS JOIN LATERAL (SELECT extract(EPOCH FROM finished_at - started_at)::float AS seconds) AS took
GROUP BY label, bucket ORDER BY label, bucket;


-- name: latencies
-- From an event's cause to its delivery, of the last that were delivered, by destination and bucket; by
-- outbox_event_ended_idx.
SELECT label, width_bucket(seconds, %(edges)s::float[]) AS bucket, count(*) AS number, sum(seconds) AS seconds
FROM (
    SELECT destination AS label, greatest(0, extract(EPOCH FROM ended_at - occurred_at)::float) AS seconds
    FROM outbox_event
    WHERE state = 'DELIVERED' AND ended_at >= %(since)s::timestamptz AND destination IS NOT NULL
    ORDER BY ended_at DESC LIMIT %(most)s::bigint
) AS delivered
GROUP BY label, bucket ORDER BY label, bucket;


-- name: traffic
-- What each destination saw lately, of the last that ended (outbox_event_ended_idx) and of what waits
-- (outbox_event_due_idx).
SELECT destination, count(*) FILTER (WHERE state = 'DELIVERED') AS delivered,
    sum(attempts)::bigint AS attempts,
    count(*) FILTER (
        WHERE state = 'DELIVERED' AND ended_at >= clock_timestamp() - make_interval(secs => %(over)s::float)
    ) AS recent
FROM (
    (SELECT destination, state, attempts, ended_at FROM outbox_event
        WHERE ended_at >= %(since)s::timestamptz AND destination IS NOT NULL
        ORDER BY ended_at DESC LIMIT %(most)s::bigint)
    UNION ALL
    (SELECT destination, state, attempts, ended_at FROM outbox_event
        WHERE ended_at IS NULL AND destination IS NOT NULL LIMIT %(most)s::bigint)
) AS seen
GROUP BY destination ORDER BY destination;
