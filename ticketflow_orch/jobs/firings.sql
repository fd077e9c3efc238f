-- name: record
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
