-- name: stale
SELECT {columns} FROM job_execution
WHERE state = 'PROCESSING' AND lease_until < clock_timestamp()
ORDER BY job, idempotency_key;


-- name: sweep
UPDATE job_execution SET state = 'FAILED', lease_until = NULL, finished_at = clock_timestamp(),
    result = jsonb_build_object('error', 'the lease ran out')
WHERE (job, idempotency_key) IN (
        SELECT job, idempotency_key FROM job_execution
        WHERE state = 'PROCESSING' AND lease_until < clock_timestamp()
        FOR UPDATE SKIP LOCKED)
    AND state = 'PROCESSING' AND lease_until < clock_timestamp()
RETURNING {columns};


-- name: list
SELECT {columns} FROM job_execution
WHERE %(job)s::text IS NULL OR job = %(job)s
ORDER BY started_at DESC LIMIT %(limit)s::bigint;
