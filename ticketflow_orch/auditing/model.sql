-- name: breaches
-- How often each month is bad, or what belongs to none, and the first examples of it in a fixed order.
WITH bad (month, whose, currency, what) AS (
    {bad}
)
SELECT month, whose, currency, what, breaches FROM (
    SELECT bad.*, count(*) OVER (PARTITION BY month) AS breaches,
        row_number() OVER (PARTITION BY month ORDER BY whose, currency, what) AS place
    FROM bad
    WHERE %(only)s::date IS NULL OR month IS NULL OR month = %(only)s::date
) AS numbered
WHERE place <= %(examples)s::bigint
ORDER BY month NULLS FIRST, place;
