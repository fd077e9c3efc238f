-- name: late_organizations
-- By month, whose movements wait to be read.
WITH {unread}
SELECT month, count(DISTINCT organization_id) AS organizations FROM unread GROUP BY month;


-- name: unread
-- The lower bound finds what was recorded last by the primary key, or by the index on the order of recording.
unread AS (
    SELECT period.month, organization_id, money_movement.currency, amount
    FROM money_movement
    JOIN organization ON organization.id = organization_id
    JOIN settlement_window USING (timezone)
    JOIN ({read_months}) AS period ON period.month = settlement_window.month
    WHERE money_movement.id >= %(least)s::bigint AND occurred_at < %(latest)s::timestamptz
        AND money_movement.id >= read_to
        AND occurred_at >= settlement_window.starts_at AND occurred_at < settlement_window.ends_at
);


-- name: unread_bounds
-- From which movement on some may be unread, and before which instant those about months that were read lie.
SELECT (SELECT min(read_to) FROM ({read_months}) AS period) AS least, (
    SELECT max(ends_at) FROM settlement_window
    WHERE month = (SELECT max(month) FROM ({read_months}) AS period)
) AS latest;


-- name: progress
-- How often each of the months asked about was settled, up to where, and how many are parked in it; by their keys.
SELECT (SELECT count(*) FROM settlement_pass WHERE month = asked.month) AS passes,
    (SELECT max(cutoff_at) FROM settlement_pass WHERE month = asked.month AND state = 'DONE') AS cutoff,
    (SELECT count(*) FROM parked_organization WHERE month = asked.month AND resolved_at IS NULL) AS parked
FROM unnest(%(months)s::date[]) WITH ORDINALITY AS asked (month, number)
ORDER BY number;
