-- name: record
-- A start and what it is, judged under the window's lock; by job_firing_window_idx.
INSERT INTO job_firing (job, scheduled_for, partition, host, pid, run_id, parent_run_id, outcome)
SELECT %(job)s::text, %(scheduled_for)s::timestamptz, %(partition)s::text, %(host)s, %(pid)s,
    %(run_id)s::text, %(parent_run_id)s::text,
    CASE
        WHEN %(parent_run_id)s::text IS NOT NULL THEN 'RETRY'
        WHEN EXISTS (
            SELECT FROM job_firing
            WHERE job = %(job)s::text AND scheduled_for = %(scheduled_for)s::timestamptz
                AND partition IS NOT DISTINCT FROM %(partition)s::text) THEN 'DUPLICATE'
        ELSE 'ACCEPTED'
    END
RETURNING outcome;


-- name: recorded
-- What this process has recorded of the start already; by job_firing_window_idx.
SELECT outcome FROM job_firing
WHERE job = %(job)s::text AND scheduled_for = %(scheduled_for)s::timestamptz
    AND partition IS NOT DISTINCT FROM %(partition)s::text
    AND run_id = %(run_id)s AND host = %(host)s AND pid = %(pid)s
ORDER BY fired_at DESC LIMIT 1;


-- name: duplicates
-- The windows that were started more than once lately (job_firing_fired_at_idx), with all of their runs and hosts.
WITH duplicated AS (
    SELECT DISTINCT job, scheduled_for, partition FROM job_firing
    WHERE outcome = 'DUPLICATE' AND fired_at >= clock_timestamp() - %(within)s::interval
)
SELECT job, scheduled_for, duplicated.partition, array_agg(DISTINCT run_id) AS runs, array_agg(DISTINCT host) AS hosts
FROM duplicated JOIN job_firing USING (job, scheduled_for)
WHERE job_firing.partition IS NOT DISTINCT FROM duplicated.partition AND parent_run_id IS NULL
GROUP BY job, scheduled_for, duplicated.partition
ORDER BY scheduled_for, job;
