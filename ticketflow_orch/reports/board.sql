-- name: board
-- A row for each month shown. Of payouts only those that wait are read, by payout_waiting_idx and payout_to_return_idx.
-- A currency or an organization that a later month's pass finds first in an earlier one is late there, whatever its
-- entry is called. An organization that is parked by hand is parked in every month not closed from then on.
WITH waiting AS (
    SELECT month, count(*) FILTER (WHERE state = 'HELD') AS held,
        count(*) FILTER (WHERE state = 'REQUESTED') AS requested,
        count(*) FILTER (WHERE state = 'IN_DOUBT') AS in_doubt
    FROM payout
    WHERE state IN ('HELD', 'REQUESTED', 'IN_DOUBT') AND month >= %(first)s::date
    GROUP BY month
), back AS (
    SELECT month, count(*) AS came_back FROM payout
    WHERE state IN ('REJECTED', 'RETURNED') AND returned_month IS NULL
    GROUP BY month
), adjusted AS (
    SELECT origin_month AS month,
        sum(rows_adjusted + CASE WHEN origin_month < month THEN rows_new ELSE 0 END)::bigint AS late
    FROM settlement_chunk
    WHERE month >= %(first)s::date
    GROUP BY origin_month
), failed AS (
    SELECT month, count(*) AS parked FROM parked_organization
    WHERE resolved_at IS NULL AND error IS NOT NULL
    GROUP BY month
)
SELECT shown.month, coalesce(state, 'OPEN') AS state, paid_at IS NOT NULL AS paid, stated_at IS NOT NULL AS issued,
    coalesce(held, 0) AS held, coalesce(requested, 0) AS requested, coalesce(in_doubt, 0) AS in_doubt,
    coalesce(came_back, 0) AS came_back, coalesce(late, 0) AS late,
    coalesce(parked, 0) + CASE WHEN state = 'CLOSED' THEN 0 ELSE (
        SELECT count(*) FROM parked_organization AS by_hand
        WHERE by_hand.resolved_at IS NULL AND by_hand.reason IS NOT NULL AND by_hand.month <= shown.month
    ) END AS parked,
    (SELECT pass FROM settlement_pass AS running
        WHERE running.month = shown.month AND running.state = 'RUNNING') AS settling,
    CASE WHEN state <> 'CLOSED' THEN (
        SELECT CASE last.state WHEN 'GIVEN_UP' THEN given_up_because END FROM settlement_pass AS last
        WHERE last.month = shown.month ORDER BY last.pass DESC LIMIT 1
    ) END AS failed,
    EXISTS (SELECT FROM delivery_stop WHERE kind = 'EVENT_TYPE' AND name = %(event)s::text) AS paused
FROM unnest(%(months)s::date[]) AS shown (month)
LEFT JOIN ({periods}) AS period ON period.month = shown.month
LEFT JOIN waiting ON waiting.month = shown.month
LEFT JOIN back ON back.month = shown.month
LEFT JOIN adjusted ON adjusted.month = shown.month
LEFT JOIN failed ON failed.month = shown.month
ORDER BY shown.month;
