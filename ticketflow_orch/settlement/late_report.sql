-- name: waiting
-- What waits, and the month that takes it in. Nothing is posted into a closed month any more: the first after all of
-- them takes it in.
WITH {unread}, open_month AS (
    SELECT max(CAST(month + interval '1 month' AS date)) AS month
    FROM ({frozen_months}) AS period
), waiting AS (
    SELECT organization_id, unread.month, greatest(unread.month, open_month.month) AS posted_in, currency,
        count(*) AS movements, sum(amount) AS amount
    FROM unread CROSS JOIN open_month
    GROUP BY organization_id, unread.month, open_month.month, currency
)
SELECT external_ref, waiting.*, exponent, count(*) OVER () AS altogether
FROM waiting
JOIN organization ON organization.id = organization_id
JOIN currency ON code = waiting.currency
WHERE %(month)s::date IS NULL OR posted_in = %(month)s::date
ORDER BY waiting.month DESC, organization_id, waiting.currency
LIMIT %(limit)s::bigint;


-- name: adjustments
-- What was posted late, with the net before it. A currency that nobody had moved money in, and an organization that was
-- parked, have their first entry late.
WITH first_pass AS (
    SELECT month AS settled_month, min(pass) AS number FROM settlement_pass WHERE state = 'DONE' GROUP BY month
), adjustment AS (
    SELECT organization_id, currency, month, origin_month, sequence, net, posted_at,
        count(*) OVER () AS adjustments
    FROM ledger_entry LEFT JOIN first_pass ON settled_month = month
    WHERE (origin_month < month OR sequence > 0 OR (settlement_pass > first_pass.number AND net <> 0))
        AND (%(month)s::date IS NULL OR month = %(month)s::date)
        AND (%(pass)s::integer IS NULL OR settlement_pass = %(pass)s::integer)
    ORDER BY month DESC, organization_id, origin_month, currency, sequence
    LIMIT %(limit)s::bigint
)
SELECT adjustment.*, external_ref, name, exponent, (
        SELECT coalesce(sum(earlier.net), 0) FROM ledger_entry AS earlier
        WHERE earlier.organization_id = adjustment.organization_id AND earlier.currency = adjustment.currency
            AND earlier.month = ANY (
                SELECT period.month FROM ({ledger_months}) AS period
                WHERE period.month BETWEEN adjustment.origin_month AND adjustment.month)
            AND earlier.origin_month = adjustment.origin_month
            AND (earlier.month, earlier.sequence) < (adjustment.month, adjustment.sequence)
    ) AS old
FROM adjustment
JOIN organization ON organization.id = organization_id
JOIN currency ON code = adjustment.currency
ORDER BY month DESC, organization_id, origin_month, adjustment.currency, sequence;
