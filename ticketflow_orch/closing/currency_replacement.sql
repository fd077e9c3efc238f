-- name: currency
-- Which currency an organization had in the month before, by the key of references.
SELECT {currency} AS currency FROM organization WHERE external_ref = %(ref)s::text;


-- name: replacing
-- What is to be done for whom, for this transaction. Remaining is what the books carry and what waits to come into
-- them; it is divided exactly and rounded once, half-up on magnitude. Who left before and is owed nothing has nothing
-- to replace. Organizations are in balances with all currencies or none, so their last of any tells what was taken in.
CREATE TEMPORARY TABLE replacing ON COMMIT DROP AS
WITH member AS MATERIALIZED (
    SELECT id, external_ref, timezone, left_on, {pays_from} AS pays_from,
        {present} AS present,
        (SELECT max(month) FROM organization_balance WHERE organization_id = organization.id) AS last_month
    FROM organization
    WHERE CASE WHEN %(organization)s::text IS NULL
            THEN currency = %(old)s::char(3)
                OR id IN (SELECT organization_id FROM organization_currency WHERE currency = %(old)s::char(3))
            ELSE external_ref = %(organization)s::text END
        AND {currency_before} = %(old)s::char(3)
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


-- name: not_in_the_books
-- The last conversion of the row `member` (id, last_month) that no balance has taken in, since there is none of its
-- month or a later one; or one of that very month that was not read when it was closed, and so is posted later. One
-- that is voided stands in the way of its own reference only. By the index of an organization's movements.
SELECT split_part(external_ref, ':', 2) AS month, split_part(external_ref, ':', 4) AS currency
FROM money_movement AS conversion
WHERE conversion.organization_id = member.id AND kind = 'MANUAL' AND NOT is_void
    AND conversion.currency = %(old)s::char(3) AND external_ref LIKE %(conversions)s::text
    AND occurred_at >= coalesce((last_month - 1)::timestamp AT TIME ZONE 'UTC', '-infinity')
    AND (
        last_month IS NULL OR split_part(external_ref, ':', 2) > to_char(last_month, 'YYYY-MM')
        OR conversion.id >= (SELECT read_to FROM ({read_months}) AS period WHERE month = last_month)
        OR EXISTS (
            SELECT FROM ({ledger_months}) AS period JOIN ledger_entry AS entry ON entry.month = period.month
            WHERE period.month > last_month AND entry.organization_id = member.id
                AND entry.currency = conversion.currency AND origin_month = last_month))
    AND (
        split_part(external_ref, ':', 4) = %(new)s::text
        OR NOT EXISTS (SELECT FROM money_movement WHERE is_void AND reverses_id = conversion.id))
ORDER BY split_part(external_ref, ':', 4) = %(new)s::text, conversion.id DESC
LIMIT 1;
