-- name: next
-- From which movement on and up to which is searched next; nobody else does so meanwhile. Up to the cutoff of a pass
-- that is done: all below it is visible or was rolled back.
SELECT searched_to, up_to, (
    SELECT count(*) FROM money_movement WHERE id >= searched_to AND id < up_to) AS movements
FROM (
    SELECT searched_to, least(cutoff, (
        SELECT id FROM money_movement WHERE id >= searched_to ORDER BY id OFFSET %(size)s::bigint LIMIT 1
    )) AS up_to
    FROM (
        SELECT searched_to, (SELECT max(cutoff) FROM settlement_pass WHERE state = 'DONE') AS cutoff
        FROM anomaly_search FOR UPDATE
    ) AS known
    WHERE cutoff > searched_to
) AS next;


-- name: note
-- Notes what the movements of a range make wrong; an anomaly that is known is only made newer.
WITH RECURSIVE
{fresh},
candidate (movement_id, why, latest_id) AS MATERIALIZED ({found})
INSERT INTO movement_anomaly AS known (movement_id, why, latest_id, organization_id, currency)
SELECT movement_id, why, latest_id, organization_id, currency FROM ({standing}) AS standing
ORDER BY movement_id, why
ON CONFLICT (movement_id, why) DO UPDATE SET latest_id = excluded.latest_id, found_at = clock_timestamp()
WHERE known.latest_id < excluded.latest_id;


-- name: noted
-- The open ones, as many as may be judged where an answer must be quick; by the index that holds nothing else.
WITH candidate AS MATERIALIZED (
    SELECT movement_id, why, latest_id, found_at FROM movement_anomaly WHERE {open}
    ORDER BY organization_id, currency LIMIT %(most)s::bigint
), standing AS ({standing})
SELECT count(*) AS movements, count(DISTINCT standing.organization_id) AS organizations, min(found_at) AS since,
    (array_agg(external_ref ORDER BY movement_id))[1] AS example, (SELECT count(*) FROM candidate) AS looked_at
FROM standing LEFT JOIN organization ON organization.id = standing.organization_id;


-- name: accept
-- Closes what is wrong with one movement, up to what was recorded when somebody looked at it.
WITH RECURSIVE {asked}
INSERT INTO movement_anomaly AS known (movement_id, why, latest_id, organization_id, currency, accepted_to,
    accepted_at, accepted_by)
SELECT movement_id, why, latest_id, organization_id, currency, least(latest_id + 1, %(through)s::bigint),
    clock_timestamp(), %(by)s::text
FROM asked WHERE movement_id = %(movement_id)s::bigint AND accepted_by IS NULL
ON CONFLICT (movement_id, why) DO UPDATE SET latest_id = greatest(known.latest_id, excluded.latest_id),
    accepted_to = excluded.accepted_to, accepted_at = excluded.accepted_at, accepted_by = excluded.accepted_by;


-- name: fresh
-- The movements for which `is_fresh` holds, and with `reversed` what they reverse, directly or not. Only what takes
-- more back can be too much of it; a capture is one too many also when what took it back is taken back.
fresh AS MATERIALIZED (
    SELECT id, kind, is_void, reverses_id, reservation_id, occurred_at, amount FROM money_movement
    WHERE {is_fresh} AND {members}
        AND (reverses_id IS NOT NULL OR (kind = 'CAPTURE' AND reservation_id IS NOT NULL))
), back (id, by_id, amount) AS (
    SELECT reverses_id, id, amount FROM fresh WHERE reverses_id IS NOT NULL
    UNION ALL
    SELECT further.reverses_id, by_id, back.amount
    FROM back JOIN money_movement AS further ON further.id = back.id WHERE further.reverses_id IS NOT NULL
), reversed AS MATERIALIZED (
    SELECT id, max(by_id) FILTER (WHERE amount < 0) AS taken_by, max(by_id) FILTER (WHERE amount > 0) AS given_by
    FROM back GROUP BY id
);


-- name: found_beyond
-- More came back than was taken.
SELECT id, 'BEYOND', CASE WHEN root.amount > 0 THEN taken_by ELSE given_by END
FROM reversed JOIN money_movement AS root USING (id)
WHERE CASE WHEN root.amount > 0 THEN taken_by ELSE given_by END IS NOT NULL;


-- name: found_earlier
-- Dated before what it reverses.
SELECT fresh.id, 'EARLIER', fresh.id
FROM fresh JOIN money_movement AS target ON target.id = fresh.reverses_id
WHERE NOT fresh.is_void AND fresh.occurred_at < target.occurred_at;


-- name: found_twice
-- A reservation was captured before, or its capture is good again; by the index on reservations.
SELECT capture.id, 'TWICE', greatest(capture.id, max(cause.by_id))
FROM (
    SELECT reservation_id, id AS by_id FROM fresh
    WHERE kind = 'CAPTURE' AND NOT is_void AND reservation_id IS NOT NULL
    UNION ALL
    SELECT reservation_id, given_by FROM reversed JOIN money_movement USING (id)
    WHERE kind = 'CAPTURE' AND reservation_id IS NOT NULL AND given_by IS NOT NULL
) AS cause
JOIN money_movement AS capture ON capture.reservation_id = cause.reservation_id
    AND capture.kind = 'CAPTURE' AND NOT capture.is_void
WHERE EXISTS (
    SELECT FROM money_movement AS first
    WHERE first.reservation_id = capture.reservation_id AND first.id < capture.id
        AND first.kind = 'CAPTURE' AND NOT first.is_void)
GROUP BY capture.id;


-- name: found_later
-- Dated later than now, by the index on when movements occurred.
SELECT id, 'LATER', id FROM money_movement
WHERE occurred_at > coalesce(%(now)s::timestamptz, statement_timestamp()) AND NOT is_void AND {members};


-- name: standing
-- What is kept of a movement says whether more came back than it took, and whether it counts at all.
SELECT candidate.*, moved.organization_id, moved.currency, abs(rest.amount) AS questionable,
    before.id AS before_id
FROM {candidate} AS candidate
JOIN money_movement AS moved ON moved.id = candidate.movement_id
CROSS JOIN LATERAL (SELECT {kept_moved} AS amount) AS rest
LEFT JOIN LATERAL (
    SELECT min(first.id) AS id FROM money_movement AS first
    WHERE candidate.why = 'TWICE' AND first.reservation_id = moved.reservation_id AND first.id < moved.id
        AND first.kind = 'CAPTURE' AND NOT first.is_void {by_then} AND {kept_first} > 0
) AS before ON true
WHERE rest.amount <> 0 AND CASE candidate.why
    WHEN 'BEYOND' THEN (rest.amount > 0) <> (moved.amount > 0)
    WHEN 'TWICE' THEN rest.amount > 0 AND before.id IS NOT NULL AND {is_dated}
    ELSE {is_dated}
END;


-- name: by_the_end_of
-- Nothing of it was dated after the month's end in the zone of its organization; by the keys of all three.
NOT EXISTS (
    SELECT FROM money_movement AS latest
    JOIN organization AS owner ON owner.id = latest.organization_id
    JOIN settlement_window AS cut ON cut.timezone = owner.timezone AND cut.month = {month}
    WHERE latest.id = latest_id AND latest.occurred_at >= cut.ends_at);


-- name: asked
-- What was noted and what was recorded since, each judged as it stands.
{fresh}, candidate AS MATERIALIZED (
    SELECT movement_id, why, max(latest_id) AS latest_id FROM (
        SELECT movement_id, why, latest_id FROM movement_anomaly
        WHERE why IN ({whys}) AND {members} AND (%(with_accepted)s::boolean OR {open})
        UNION ALL
        SELECT * FROM ({found}) AS found (movement_id, why, latest_id)
    ) AS known GROUP BY movement_id, why
), asked AS (
    SELECT standing.*, CASE WHEN accepted_to > standing.latest_id THEN accepted_by END AS accepted_by
    FROM ({standing}) AS standing LEFT JOIN movement_anomaly USING (movement_id, why)
);


-- name: listed
-- Anomalies with the movements and organizations that they are about, in the order of recording.
WITH RECURSIVE {asked}
SELECT why, organization.external_ref AS organization, asked.currency, exponent,
    moved.external_ref AS reference, moved.kind, moved.amount, questionable, moved.occurred_at,
    other.external_ref AS other, other.occurred_at AS other_occurred_at, accepted_by, count(*) OVER () AS total
FROM asked
JOIN money_movement AS moved ON moved.id = movement_id
JOIN organization ON organization.id = asked.organization_id
JOIN currency ON code = asked.currency
LEFT JOIN money_movement AS other ON other.id = CASE why
    WHEN 'BEYOND' THEN latest_id WHEN 'EARLIER' THEN moved.reverses_id WHEN 'TWICE' THEN before_id END
WHERE %(with_accepted)s::boolean OR accepted_by IS NULL
ORDER BY movement_id, why LIMIT %(limit)s::bigint;
