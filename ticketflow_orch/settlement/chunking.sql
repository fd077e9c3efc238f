-- name: cut
WITH {chunks} SELECT low_id, high_id FROM cut ORDER BY low_id;


-- name: plan_all
INSERT INTO settlement_chunk (month, pass, origin_month, low_id, high_id)
WITH {chunks}
SELECT %(month)s::date, %(pass)s::integer, origin_month, low_id, high_id
FROM cut CROSS JOIN unnest(%(origins)s::date[]) AS origin (origin_month);
