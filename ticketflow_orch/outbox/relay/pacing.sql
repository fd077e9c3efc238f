-- name: probe
-- The right to try a destination that is left alone: one relay's, until it has ended or for a lease.
UPDATE delivery_destination SET probe_until = clock_timestamp() + make_interval(secs => %(lease)s::float)
WHERE name = %(name)s::text AND open_until IS NOT NULL AND {still_open} IS NOT TRUE AND {still_probed} IS NOT TRUE;


-- name: reserve
-- Turns at the rate of a destination, behind those of other relays; no row where the next one is too far away.
INSERT INTO delivery_destination AS known (name, next_at)
VALUES (%(name)s::text, clock_timestamp() + make_interval(secs => %(needed)s::float))
ON CONFLICT (name) DO UPDATE
SET next_at = make_interval(secs => %(needed)s::float)
    + CASE WHEN {still_next} THEN known.next_at ELSE clock_timestamp() END
WHERE ({still_next}
    AND known.next_at >= clock_timestamp() + make_interval(secs => %(soon)s::float)) IS NOT TRUE
RETURNING greatest(extract(EPOCH FROM known.next_at - clock_timestamp()) - %(needed)s::float, 0)::float;


-- name: failed
-- Something failed, and nothing arrived: from now on it fails, unless it does already.
INSERT INTO delivery_destination AS known (name, failing_since, last_error)
VALUES (%(name)s::text, clock_timestamp(), %(error)s::text)
ON CONFLICT (name) DO UPDATE
SET failing_since = coalesce(known.failing_since, clock_timestamp()), last_error = excluded.last_error
RETURNING {known};


-- name: opened
-- Leave it alone, for a time that doubles whenever that was without effect; once for those that fail together.
INSERT INTO delivery_destination AS known (name, failing_since, pauses, open_until, paused_until, last_error)
VALUES (%(name)s::text, clock_timestamp(), 1,
    clock_timestamp() + make_interval(secs => %(first)s::float * (0.5 + random() / 2)),
    clock_timestamp() + make_interval(secs => %(asked)s::float), %(error)s::text)
ON CONFLICT (name) DO UPDATE
SET failing_since = coalesce(known.failing_since, clock_timestamp()), last_error = excluded.last_error,
    probe_until = NULL, paused_until = greatest(known.paused_until, excluded.paused_until),
    pauses = known.pauses + CASE WHEN {still_open} THEN 0 ELSE 1 END,
    open_until = CASE WHEN {still_open} THEN known.open_until
        ELSE clock_timestamp() + make_interval(secs => (0.5 + random() / 2)
            * least(%(longest)s::float, %(first)s::float * power(2, least(known.pauses, 30)))) END
RETURNING {known};


-- name: closed
-- Something arrived: it fails no more.
UPDATE delivery_destination AS known
SET failing_since = NULL, pauses = 0, open_until = NULL, probe_until = NULL, last_error = NULL
WHERE name = %(name)s::text
RETURNING {known};


-- name: are_idle
-- Nothing waits for these, so nothing would show that they fail no more.
UPDATE delivery_destination AS known
SET failing_since = NULL, pauses = 0, open_until = NULL, probe_until = NULL, last_error = NULL
WHERE name = ANY (%(names)s::text[]);


-- name: throttled
-- It takes less. Each of those that were in flight together says the same, and so does each relay, so the rate falls
-- once a second at most. What it took before anything is known of its rate says little.
INSERT INTO delivery_destination AS known
    (name, failing_since, rate, throttled_at, rate_at, paused_until, last_error)
VALUES (%(name)s::text, clock_timestamp(), round(greatest(0.8 * %(observed)s::numeric, 1), 3),
    clock_timestamp(), clock_timestamp(), clock_timestamp() + make_interval(secs => %(asked)s::float),
    %(error)s::text)
ON CONFLICT (name) DO UPDATE
SET ceiling = CASE WHEN known.throttled_at > clock_timestamp() - interval '1 second' THEN known.ceiling
        ELSE known.rate END,
    rate = CASE WHEN known.rate IS NULL THEN round(greatest(0.8 * %(observed)s::numeric, 1), 3)
        WHEN known.throttled_at > clock_timestamp() - interval '1 second' THEN known.rate
        ELSE round(greatest(0.8 * known.rate, 0.2), 3) END,
    throttled_at = CASE WHEN known.throttled_at > clock_timestamp() - interval '1 second' THEN known.throttled_at
        ELSE clock_timestamp() END,
    failing_since = coalesce(known.failing_since, clock_timestamp()), rate_at = clock_timestamp(),
    paused_until = greatest(known.paused_until, excluded.paused_until), last_error = excluded.last_error,
    open_until = CASE WHEN %(probed)s::boolean THEN NULL ELSE known.open_until END,
    probe_until = CASE WHEN %(probed)s::boolean THEN NULL ELSE known.probe_until END,
    pauses = CASE WHEN %(probed)s::boolean THEN 0 ELSE known.pauses END
RETURNING {known};


-- name: quicken
-- It takes what it is sent: doubled until it says that it is too much, near that by little; without a rate again where
-- it has not said so for long.
UPDATE delivery_destination AS known
SET rate = CASE WHEN throttled_at < clock_timestamp() - interval '10 minutes' THEN NULL
        WHEN ceiling IS NULL THEN 2 * rate
        WHEN rate BETWEEN 0.7 * ceiling AND 1.2 * ceiling THEN round(1.03 * rate + 0.05, 3)
        ELSE round(1.3 * rate, 3) END,
    rate_at = clock_timestamp()
WHERE name = %(name)s::text AND rate IS NOT NULL
    AND rate_at < clock_timestamp() - make_interval(secs => CASE WHEN ceiling IS NULL THEN 0.5 ELSE 1 END)
RETURNING {known};
