-- name: late_organizations
WITH {unread}
SELECT month, count(DISTINCT organization_id) AS organizations FROM unread GROUP BY month;
