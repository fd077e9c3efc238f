-- name: chunks
-- The queries `beginning` and `cut` (low_id, high_id), recursive: every `size`-th organization begins a chunk, found by
-- the key. The first begins before all of them and the last is open-ended, for organizations that are yet to come.
RECURSIVE beginning (id) AS (
    (SELECT id FROM organization ORDER BY id LIMIT 1)
    UNION ALL
    SELECT (SELECT id FROM organization WHERE id >= beginning.id ORDER BY id OFFSET %(size)s::bigint LIMIT 1)
    FROM beginning WHERE id IS NOT NULL
), cut (low_id, high_id) AS (
    SELECT CASE row_number() OVER (ORDER BY id) WHEN 1 THEN least(id, 0) ELSE id END,
        lead(id) OVER (ORDER BY id) - 1
    FROM beginning WHERE id IS NOT NULL
);


-- name: cut
-- The chunks of all organizations, in order.
WITH {chunks} SELECT low_id, high_id FROM cut ORDER BY low_id;


-- name: plan_all
-- The chunks of a pass that looks at all organizations, for each of the months `origins`.
INSERT INTO settlement_chunk (month, pass, origin_month, low_id, high_id)
WITH {chunks}
SELECT %(month)s::date, %(pass)s::integer, origin_month, low_id, high_id
FROM cut CROSS JOIN unnest(%(origins)s::date[]) AS origin (origin_month);
