-- name: run_times
WITH {jobs}
SELECT known.job AS label, width_bucket(took.seconds, %(edges)s::float[]) AS bucket, count(*) AS number,
    sum(took.seconds) AS seconds
FROM known
JOIN job_execution AS done ON done.job = known.job
    AND idempotency_key >= %(from_key)s AND idempotency_key < %(to_key)s
    AND state = 'COMPLETED' AND finished_at >= %(since)s::timestamptz
CROSS JOIN LATERAL (SELECT CAST(extract(epoch FROM finished_at - started_at) AS float) AS seconds) AS took
GROUP BY label, bucket ORDER BY label, bucket;


-- name: traffic
SELECT destination, count(*) FILTER (WHERE state = 'DELIVERED') AS delivered,
    CAST(sum(attempts) AS bigint) AS attempts,
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
