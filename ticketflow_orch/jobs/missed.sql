-- name: without_firing
-- The places, from 1 on, of those of the expected windows that nothing started; a probe of job_firing_window_idx each.
SELECT place FROM unnest(
    %(jobs)s::text[], %(instants)s::timestamptz[], %(partitions)s::text[]
) WITH ORDINALITY AS expected (job, scheduled_for, partition, place)
WHERE NOT EXISTS (
    SELECT FROM job_firing
    WHERE job_firing.job = expected.job AND job_firing.scheduled_for = expected.scheduled_for
        AND job_firing.partition IS NOT DISTINCT FROM expected.partition)
ORDER BY place;
