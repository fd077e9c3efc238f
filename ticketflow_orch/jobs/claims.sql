-- name: claim
-- Takes a claim that is new, that failed, or whose holder let the lease end; no row where it is not to be had. The
-- primary key makes it one taker: the others wait for its row.
INSERT INTO job_execution AS held (job, idempotency_key, state, owner, lease_until)
VALUES (%(job)s, %(key)s, 'PROCESSING', %(owner)s, clock_timestamp() + make_interval(secs => %(lease)s))
ON CONFLICT (job, idempotency_key) DO UPDATE SET
    state = 'PROCESSING', attempt = held.attempt + 1, owner = excluded.owner, heartbeat_at = clock_timestamp(),
    lease_until = excluded.lease_until, started_at = clock_timestamp(), finished_at = NULL, result = NULL
WHERE held.state = 'FAILED' OR (held.state = 'PROCESSING' AND held.lease_until < clock_timestamp())
RETURNING attempt;


-- name: look
-- Who holds a claim that was not to be had, and for how long still; or what came of the work.
SELECT state, owner, attempt, lease_until, result, lease_until >= now.at AS held,
    extract(EPOCH FROM lease_until - now.at)::float AS remaining
FROM (SELECT clock_timestamp() AS at) AS now, job_execution
WHERE job = %(job)s AND idempotency_key = %(key)s;


-- name: beat
-- Renews the lease of the attempt that holds the claim; no row where it was overtaken.
UPDATE job_execution
SET heartbeat_at = clock_timestamp(), lease_until = clock_timestamp() + make_interval(secs => %(lease)s)
WHERE job = %(job)s AND idempotency_key = %(key)s AND attempt = %(attempt)s AND state = 'PROCESSING';


-- name: end
-- Ends the attempt that holds the claim; no row where it was overtaken. Completed twice by one attempt, it stays so.
UPDATE job_execution SET state = %(state)s, result = %(result)s::jsonb, lease_until = NULL,
    finished_at = clock_timestamp()
WHERE job = %(job)s AND idempotency_key = %(key)s AND attempt = %(attempt)s
    AND (state = 'PROCESSING' OR (state = 'COMPLETED' AND %(state)s = 'COMPLETED'));


-- name: take_back
-- Takes a claim back that was swept while its work went on. A sweep leaves the attempt as it was; one who takes a
-- claim, or releases it by hand, counts it up, and then there is no row.
UPDATE job_execution SET state = 'PROCESSING', attempt = attempt + 1, owner = %(owner)s, finished_at = NULL,
    result = NULL, heartbeat_at = clock_timestamp(),
    lease_until = clock_timestamp() + make_interval(secs => %(lease)s), started_at = clock_timestamp()
WHERE job = %(job)s AND idempotency_key = %(key)s AND attempt = %(attempt)s AND state = 'FAILED';


-- name: is_ours
-- Whether this process has taken the claim back and completed it already, and the answer was lost.
SELECT EXISTS (
    SELECT FROM job_execution
    WHERE job = %(job)s AND idempotency_key = %(key)s AND attempt = %(attempt)s::integer + 1
        AND state = 'COMPLETED' AND owner = %(owner)s);


-- name: stale
-- Claims whose holder let the lease end; by job_execution_lease_idx.
SELECT {columns} FROM job_execution
WHERE state = 'PROCESSING' AND lease_until < clock_timestamp()
ORDER BY job, idempotency_key;


-- name: sweep
-- Fails the stale claims that no other sweep has locked, and leaves their attempt, so that their holder can take back.
UPDATE job_execution SET state = 'FAILED', lease_until = NULL, finished_at = clock_timestamp(),
    result = jsonb_build_object('error', 'the lease ran out')
WHERE (job, idempotency_key) IN (
        SELECT job, idempotency_key FROM job_execution
        WHERE state = 'PROCESSING' AND lease_until < clock_timestamp()
        FOR UPDATE SKIP LOCKED)
    AND state = 'PROCESSING' AND lease_until < clock_timestamp()
RETURNING {columns};


-- name: list
-- The last claims, of one job or of all.
SELECT {columns} FROM job_execution
WHERE %(job)s::text IS NULL OR job = %(job)s
ORDER BY started_at DESC LIMIT %(limit)s::bigint;


-- name: release
-- Takes a claim from its holder by hand: the attempt is counted up, which fences the holder off.
UPDATE job_execution SET state = 'FAILED', attempt = attempt + 1, lease_until = NULL,
    finished_at = clock_timestamp(), result = jsonb_build_object('error', 'released by hand')
WHERE job = %(job)s AND idempotency_key = %(key)s AND state = 'PROCESSING';
