-- name: today
-- Where the business is does not matter here: what is decided by days has a month's grace.
(clock_timestamp() AT TIME ZONE 'UTC')::date;


-- name: still_in_withdrawn
-- The organizations' currencies are found by one index probe each, and who has one that is not in use by that index.
WITH RECURSIVE own (code) AS (
    (SELECT currency FROM organization ORDER BY currency LIMIT 1)
    UNION ALL
    SELECT (SELECT currency FROM organization WHERE currency > own.code ORDER BY currency LIMIT 1)
    FROM own WHERE code IS NOT NULL
), withdrawn AS MATERIALIZED (
    SELECT code, last_day FROM currency
    WHERE last_day < {today}
        AND code IN (SELECT code FROM own UNION ALL SELECT currency FROM organization_currency)
)
SELECT code, last_day, still.* FROM withdrawn CROSS JOIN LATERAL (
    SELECT id AS organization_id, external_ref FROM organization
    WHERE organization.currency = withdrawn.code AND (left_on IS NULL OR left_on >= {today})
        AND NOT EXISTS (SELECT FROM organization_currency WHERE organization_id = organization.id)
    UNION ALL
    SELECT organization.id, external_ref
    FROM organization_currency AS decided JOIN organization ON organization.id = decided.organization_id
    WHERE decided.currency = withdrawn.code AND (left_on IS NULL OR left_on >= {today})
        AND NOT EXISTS (
            SELECT FROM organization_currency AS later
            WHERE later.organization_id = decided.organization_id
                AND (later.from_month, later.id) > (decided.from_month, decided.id))
) AS still;


-- name: currency_of
-- Nearly everywhere no currency was ever replaced, and then nothing is looked up: that is asked once a statement.
CASE WHEN EXISTS (SELECT FROM organization_currency) THEN coalesce((
    SELECT decided.currency FROM organization_currency AS decided
    WHERE decided.organization_id = {organization}.id AND decided.from_month <= {month}
    ORDER BY decided.from_month DESC, decided.id DESC LIMIT 1
), {organization}.currency) ELSE {organization}.currency END;


-- name: out_of_use
-- What is entered a month beside a changeover may be about the days before or after it.
({instant} >= ({currency}.last_day + 32)::timestamp AT TIME ZONE 'UTC'
    OR {instant} < ({currency}.first_day - 31)::timestamp AT TIME ZONE 'UTC');
