-- name: next
-- The cutoff of a pass that is done: all below it is visible or was rolled back.
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
WITH RECURSIVE
{found_id_cast_from_id_as_bigint_and_id_cast_to_id_as_bigint},
candidate (movement_id, why, latest_id) AS MATERIALIZED ({join_found_why_values})
INSERT INTO movement_anomaly AS known (movement_id, why, latest_id, organization_id, currency)
SELECT movement_id, why, latest_id, organization_id, currency FROM ({standing_candidate}) AS standing
ORDER BY movement_id, why
ON CONFLICT (movement_id, why) DO UPDATE SET latest_id = excluded.latest_id, found_at = clock_timestamp()
WHERE known.latest_id < excluded.latest_id;


-- name: noted
WITH candidate AS MATERIALIZED (
    SELECT movement_id, why, latest_id, found_at FROM movement_anomaly WHERE {open}
    ORDER BY organization_id, currency LIMIT %(most)s::bigint
), standing AS ({standing_candidate})
SELECT count(*) AS movements, count(DISTINCT standing.organization_id) AS organizations, min(found_at) AS since,
    (array_agg(external_ref ORDER BY movement_id))[1] AS example, (SELECT count(*) FROM candidate) AS looked_at
FROM standing LEFT JOIN organization ON organization.id = standing.organization_id;


-- name: accept
WITH RECURSIVE {asked_tuple__found_why}
INSERT INTO movement_anomaly AS known (movement_id, why, latest_id, organization_id, currency, accepted_to,
    accepted_at, accepted_by)
SELECT movement_id, why, latest_id, organization_id, currency, least(latest_id + 1, %(through)s::bigint),
    clock_timestamp(), %(by)s::text
FROM asked WHERE movement_id = %(movement_id)s::bigint AND accepted_by IS NULL
ON CONFLICT (movement_id, why) DO UPDATE SET latest_id = greatest(known.latest_id, excluded.latest_id),
    accepted_to = excluded.accepted_to, accepted_at = excluded.accepted_at, accepted_by = excluded.accepted_by;
