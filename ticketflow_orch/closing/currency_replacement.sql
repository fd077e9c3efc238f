-- name: currency
SELECT {currency_of_cast_before_as_date} AS currency FROM organization WHERE external_ref = %(ref)s::text;


-- name: replacing
-- Remaining is what the books carry and what waits to come into them. It is divided exactly and rounded once, half-up on
-- magnitude. An organization that left before and is owed nothing has nothing to replace. It is in balances with all its
-- currencies or with none, so its last one of any tells what they have taken in.
CREATE TEMPORARY TABLE replacing ON COMMIT DROP AS
WITH member AS MATERIALIZED (
    SELECT id, external_ref, timezone, left_on, {pays_from} AS pays_from,
        {currency_of_cast_from_as_date} AS present,
        (SELECT max(month) FROM organization_balance WHERE organization_id = organization.id) AS last_month
    FROM organization
    WHERE CASE WHEN %(organization)s::text IS NULL
            THEN currency = %(old)s::char(3)
                OR id IN (SELECT organization_id FROM organization_currency WHERE currency = %(old)s::char(3))
            ELSE external_ref = %(organization)s::text END
        AND {currency_of_cast_before_as_date} = %(old)s::char(3)
), owed AS (
    SELECT member.*, zone.starts_at, coalesce((
            SELECT closing FROM organization_balance AS balance
            WHERE balance.organization_id = member.id AND balance.currency = %(old)s::char(3)
            ORDER BY month DESC LIMIT 1
        ), 0) + coalesce((
            SELECT sum(amount) FROM opening_balance
            WHERE organization_id = member.id AND currency = %(old)s::char(3) AND balance_month IS NULL
        ), 0) + coalesce((
            SELECT sum(amount) FROM payout
            WHERE organization_id = member.id AND currency = %(old)s::char(3)
                AND state IN ('REJECTED', 'RETURNED') AND returned_month IS NULL
        ), 0) AS remaining, (
            SELECT 'payout ' || public_id || ' of ' || to_char(month, 'YYYY-MM') || ' is ' || state
                || '; replace its currency when it is confirmed or has come back'
            FROM payout
            WHERE organization_id = member.id AND currency = %(old)s::char(3)
                AND state IN ('HELD', 'REQUESTED', 'IN_DOUBT')
            ORDER BY month LIMIT 1
        ) AS in_flight,
        converted.month AS converted_in, converted.currency AS converted_to
    FROM member
    LEFT JOIN unnest(%(timezones)s::text[], %(starts)s::timestamptz[])
        AS zone (timezone, starts_at) USING (timezone)
    LEFT JOIN LATERAL ({not_in_the_books}) AS converted ON true
), exchanged AS (
    SELECT owed.*, sign(remaining) * div(
        2 * abs(remaining) * %(numerator)s::numeric + %(denominator)s::numeric,
        2 * %(denominator)s::numeric) AS becomes
    FROM owed
    WHERE remaining <> 0 OR left_on IS NULL OR left_on >= %(from)s::date
), judged AS (
    SELECT exchanged.*, CASE
            WHEN converted_to <> %(new)s::text
                THEN 'what it was owed in ' || %(old)s::text || ' became ' || converted_to || ' in '
                    || converted_in || ', and no closed books have taken that in; import voids of both movements '
                    'first'
            WHEN %(dated)s::date IS NULL OR %(old)s::text = %(new)s::text THEN NULL
            WHEN starts_at IS NULL THEN 'its time zone ' || quote_literal(timezone) || ' is unknown to tzdata'
            WHEN in_flight IS NOT NULL THEN in_flight
            WHEN %(dated)s::date < pays_from
                THEN 'it is paid from ' || to_char(pays_from, 'YYYY-MM') || ' on, and what is dated before counts '
                    'as settled elsewhere; replace its currency when that month is the first that is not closed'
            WHEN greatest(abs(remaining), abs(becomes)) > 9223372036854775807
                THEN 'at this rate it would be owed more than an amount can hold'
        END AS why
    FROM exchanged
)
SELECT id AS organization_id, external_ref, starts_at, remaining, becomes, why,
    why IS NULL AND present <> %(new)s::char(3) AS decides,
    why IS NULL AND %(dated)s::date IS NOT NULL AND %(old)s::text <> %(new)s::text
        AND remaining <> 0 AND converted_to IS NULL AS converts,
    why IS NULL AND converted_to IS NOT NULL AS is_done
FROM judged;
