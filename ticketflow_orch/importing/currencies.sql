-- name: movements
-- New movements in a currency that was not in use then, by currency; what reverses or corrects aside.
SELECT code, first_day, last_day, count(*) AS movements,
    (array_agg(external_ref ORDER BY line))[1] AS external_ref,
    to_char((array_agg(occurred_at ORDER BY line))[1] AT TIME ZONE 'UTC', 'YYYY-MM-DD') AS occurred_on
FROM linked_money_movement AS linked JOIN currency ON code::text = linked.currency
WHERE present_id IS NULL AND reverses_ref IS NULL AND kind <> 'MANUAL'
    AND {out_of_use}
GROUP BY code, first_day, last_day
ORDER BY code;


-- name: organizations
-- New organizations whose currency is withdrawn, by currency.
SELECT code, last_day, count(*) AS organizations, (array_agg(external_ref ORDER BY line))[1] AS external_ref
FROM linked_organization AS linked JOIN currency ON code::text = linked.currency
WHERE present_id IS NULL AND last_day < CAST(clock_timestamp() AT TIME ZONE 'UTC' AS date)
    AND (left_on IS NULL OR left_on > last_day)
GROUP BY code, last_day
ORDER BY code;
