-- name: in_unknown_zones
-- Organizations in zones that nobody knows, with each month that may be about them; the index on zones finds them, and
-- movements are probed by organization and time, a day around the month in UTC.
SELECT organization.id AS organization_id, external_ref, origin_month,
    'time zone ' || quote_literal(timezone) || ' is unknown to tzdata: correct it, or upgrade tzdata' AS error,
    EXISTS (
        SELECT FROM parked_organization AS parked
        WHERE parked.organization_id = organization.id AND parked.month = origin_month AND parked.error IS NOT NULL
            AND resolved_at IS NULL
    ) AS is_parked
FROM organization CROSS JOIN unnest(
    %(months)s::date[], %(starts)s::timestamptz[], %(ends)s::timestamptz[]
) AS span (origin_month, starts_at, ends_at)
WHERE timezone = ANY (%(unknown)s::text[]) AND (
    (origin_month = %(month)s::date AND joined_on < %(after)s::date
        AND (left_on IS NULL OR left_on >= %(month)s::date))
    OR (origin_month = %(month)s::date AND EXISTS (
        SELECT FROM opening_balance
        WHERE opening_balance.organization_id = organization.id AND balance_month IS NULL))
    OR EXISTS (
        SELECT FROM money_movement
        WHERE organization_id = organization.id AND money_movement.id < %(cutoff)s::bigint
            AND occurred_at >= starts_at - interval '1 day' AND occurred_at < ends_at + interval '1 day'))
ORDER BY organization.id, origin_month;
