-- name: changed_months
WITH {changed}
SELECT origin_month FROM (SELECT DISTINCT origin_month FROM watched) AS asked
WHERE EXISTS (SELECT FROM changed WHERE changed.origin_month = asked.origin_month);


-- name: plan_changed
INSERT INTO settlement_chunk (month, pass, origin_month, low_id, high_id, organizations)
{changed_chunks}
SELECT %(month)s::date, %(pass)s::integer, origin_month, low_id, high_id, organizations
FROM changed_chunk;
