-- name: to_be_paid
-- New movements of closed months, of organizations without a balance, that are not from before the first month that
-- they are paid for. Months as UTC has them, which is near enough for a warning.
WITH last AS (
    SELECT CAST(max(month) AS date) AS closed FROM ({periods}) AS period WHERE state IN ('CLOSING', 'CLOSED')
), early AS (
    SELECT organization_ref, organization_id, line,
        CAST(date_trunc('month', occurred_at AT TIME ZONE 'UTC') AS date) AS month
    FROM linked_money_movement, last
    WHERE present_id IS NULL AND occurred_at < (closed + interval '1 month') AT TIME ZONE 'UTC'
)
SELECT count(*) AS movements, count(DISTINCT early.organization_id) AS organizations,
    (array_agg(organization_ref ORDER BY early.line))[1] AS example, (SELECT closed FROM last) AS closed
FROM early
LEFT JOIN organization AS stored ON stored.id = early.organization_id
LEFT JOIN linked_organization AS new ON new.external_ref = organization_ref AND new.present_id IS NULL
WHERE early.month >= coalesce(
        CAST(new.payouts_from || '-01' AS date), stored.payouts_from, (SELECT payouts_from FROM installation))
    AND NOT EXISTS (
        SELECT FROM organization_balance AS balance WHERE balance.organization_id = early.organization_id);
