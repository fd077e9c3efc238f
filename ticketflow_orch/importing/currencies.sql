-- name: movements
SELECT code, first_day, last_day, count(*) AS movements,
    (array_agg(external_ref ORDER BY line))[1] AS external_ref,
    to_char((array_agg(occurred_at ORDER BY line))[1] AT TIME ZONE 'UTC', 'YYYY-MM-DD') AS occurred_on
FROM linked_money_movement AS linked JOIN currency ON code::text = linked.currency
WHERE present_id IS NULL AND reverses_ref IS NULL AND kind <> 'MANUAL'
    AND {out_of_use_occurred_at}
GROUP BY code, first_day, last_day
ORDER BY code;
