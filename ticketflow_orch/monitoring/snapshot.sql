-- name: effects
-- What the completed windows of a day did, by job and effect, from their stored results, because no index finds what
-- was closed or expired when; by the primary key of job_execution. What a killed run had committed is missing here: its
-- successor's result counts only its own. `left` is no count of what was done.
WITH {jobs}
SELECT known.job, effect.key, sum(effect.value::bigint)::bigint
FROM known
JOIN job_execution AS done ON done.job = known.job
    AND idempotency_key >= %(from_key)s AND idempotency_key < %(to_key)s
    AND state = 'COMPLETED' AND finished_at >= %(since)s::timestamptz
CROSS JOIN LATERAL jsonb_each(result) AS effect
WHERE jsonb_typeof(effect.value) = 'number' AND effect.key <> 'left'
GROUP BY known.job, effect.key ORDER BY known.job, effect.key;


-- name: last_success
-- When each job last completed a window, by the primary key of job_execution: of scheduled windows the last key, of
-- what was launched by hand, whose keys are in no order, all. Settlement has no claims, and passes instead.
WITH {jobs}
SELECT known.job, latest.finished_at
FROM known CROSS JOIN LATERAL (
    SELECT max(finished_at) AS finished_at FROM (
        (SELECT finished_at FROM job_execution
        WHERE job = known.job AND state = 'COMPLETED' AND idempotency_key < 'by hand '
        ORDER BY idempotency_key DESC LIMIT 1)
        UNION ALL
        (SELECT finished_at FROM job_execution
        WHERE job = known.job AND state = 'COMPLETED' AND idempotency_key >= 'by hand ')
    ) AS either
) AS latest
WHERE latest.finished_at IS NOT NULL
UNION ALL
SELECT '{settlement}', max(finished_at) FROM settlement_pass WHERE state = 'DONE' HAVING count(*) > 0;
