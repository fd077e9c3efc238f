-- name: settled
-- The first month that is settled with rows of the import: what the guards on both tables ask, answered with a name.
SELECT external_ref, month FROM (
    SELECT organization.external_ref, cut.month
    FROM money_movement
    JOIN organization ON organization.id = organization_id
    JOIN settlement_window AS cut ON cut.timezone = organization.timezone
    WHERE money_movement.import_id = %(import_id)s::bigint
        AND occurred_at >= cut.starts_at AND occurred_at < cut.ends_at
        AND settlement_has_read(money_movement.id, organization_id, cut.month)
    UNION ALL
    SELECT organization.external_ref, period.month
    FROM organization CROSS JOIN ({periods}) AS period
    JOIN ledger_entry ON ledger_entry.month = period.month AND ledger_entry.organization_id = organization.id
    WHERE organization.import_id = %(import_id)s::bigint
) AS settled
ORDER BY month, external_ref
LIMIT 1;


-- name: let_go
-- Give up the passes that no run works on at this moment, by NOWAIT: they have read nothing of what goes, and
-- the next run begins another.
WITH waiting AS MATERIALIZED (
    SELECT chunk.month, chunk.pass FROM settlement_chunk AS chunk JOIN settlement_pass USING (month, pass)
    WHERE settlement_pass.state = 'RUNNING' AND chunk.state = 'PLANNED'
    ORDER BY chunk.month, chunk.pass, origin_month, low_id
    FOR UPDATE OF chunk NOWAIT
), dropped AS (
    DELETE FROM settlement_chunk USING (SELECT DISTINCT month, pass FROM waiting) AS let_go
    WHERE settlement_chunk.month = let_go.month AND settlement_chunk.pass = let_go.pass
        AND settlement_chunk.state = 'PLANNED'
)
UPDATE settlement_pass SET state = 'GIVEN_UP', finished_at = clock_timestamp(),
    planned_at = coalesce(planned_at, clock_timestamp())
WHERE state = 'RUNNING';


-- name: delete
-- Delete what the import brought to one table.
DELETE FROM {table} WHERE import_id = %(import_id)s::bigint;
