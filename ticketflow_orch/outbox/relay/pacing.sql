-- name: probe
UPDATE delivery_destination SET probe_until = clock_timestamp() + make_interval(secs => %(lease)s::float)
WHERE name = %(name)s::text AND open_until IS NOT NULL AND {still_open_until} IS NOT TRUE
    AND {still_probe_until} IS NOT TRUE;


-- name: reserve
INSERT INTO delivery_destination AS known (name, next_at)
VALUES (%(name)s::text, clock_timestamp() + make_interval(secs => %(needed)s::float))
ON CONFLICT (name) DO UPDATE
SET next_at = make_interval(secs => %(needed)s::float)
    + CASE WHEN {still_known_next_at} THEN known.next_at ELSE clock_timestamp() END
WHERE ({still_known_next_at}
    AND known.next_at >= clock_timestamp() + make_interval(secs => %(soon)s::float)) IS NOT TRUE
RETURNING CAST(greatest(extract(epoch FROM known.next_at - clock_timestamp()) - %(needed)s::float, 0) AS float);


-- name: are_idle
{close} WHERE name = ANY (%(names)s::text[]);
