-- name: unfinished
-- The last start of each window of these jobs lately (job_firing_fired_at_idx), whose claim failed or is not there, and
-- after which no window of the job was completed (the primary key of job_execution).
WITH started AS (
    SELECT DISTINCT ON (job, scheduled_for) job, scheduled_for, run_id, fired_at,
        to_char(scheduled_for AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"+00:00"') AS key
    FROM job_firing
    WHERE job = ANY (%(jobs)s::text[]) AND partition IS NULL
        AND fired_at >= clock_timestamp() - %(within)s::interval
    ORDER BY job, scheduled_for, fired_at DESC
)
SELECT started.job, scheduled_for, run_id, result ->> 'error' AS error
FROM started
LEFT JOIN job_execution AS held ON held.job = started.job AND held.idempotency_key = started.key
WHERE (held.state = 'FAILED'
        OR (held.state IS NULL AND fired_at < clock_timestamp() - %(patience)s::interval))
    AND NOT EXISTS (
        SELECT FROM job_execution AS later
        WHERE later.job = started.job AND later.state = 'COMPLETED'
            AND (later.idempotency_key > started.key OR later.finished_at > fired_at))
ORDER BY scheduled_for, started.job;
