-- name: broken
-- The rules that `rows`, aliased `staged`, break, as problems. Most rows break none, so one filter over all rules comes
-- before each rule by itself.
SELECT staged.line, rule.position, rule."column", rule.value, rule.reason
FROM {rows}
CROSS JOIN LATERAL (VALUES
    {each}
) AS rule (bad, position, "column", value, reason)
WHERE NOT staged.faulty AND {which} AND ({broken}) AND rule.bad;
