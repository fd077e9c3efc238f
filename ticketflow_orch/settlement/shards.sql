-- name: hands
-- Whose hands chunks of some passes of a month went through, in the order of their first; by the chunks' key, and the
-- organizations of a range counted in their own key's index. What was done before runs were noted is not there.
SELECT run_id, worker, count(*) AS chunks, sum(rows_new + rows_adjusted + rows_existing)::bigint AS rows,
    sum(CASE WHEN organizations IS NULL THEN (
            SELECT count(*) FROM organization
            WHERE id BETWEEN chunk.low_id AND coalesce(chunk.high_id, %(largest)s::bigint))
        ELSE cardinality(organizations) END)::bigint AS organizations,
    extract(epoch FROM sum(finished_at - begun_at))::float8 AS seconds
FROM settlement_chunk AS chunk
WHERE month = %(month)s::date AND pass = ANY (%(passes)s::integer[]) AND run_id IS NOT NULL
    AND (%(run)s::text IS NULL OR run_id = %(run)s::text)
GROUP BY run_id, worker
ORDER BY min(begun_at), worker;


-- name: others_helped
-- Whether another run did any chunk of these passes; by the chunks' key.
SELECT EXISTS (
    SELECT FROM settlement_chunk
    WHERE month = %(month)s::date AND pass = ANY (%(passes)s::integer[]) AND run_id <> %(run)s::text);


-- name: open_work
-- The pass of a month that is running and planned, with how many of its chunks are not done; by both keys.
SELECT pass AS number, cutoff_at, (
    SELECT count(*) FROM settlement_chunk
    WHERE settlement_chunk.month = settlement_pass.month AND settlement_chunk.pass = settlement_pass.pass
        AND settlement_chunk.state = 'PLANNED') AS planned
FROM settlement_pass
WHERE month = %(month)s::date AND state = 'RUNNING' AND planned_at IS NOT NULL;
