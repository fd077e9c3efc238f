-- name: left
-- Organizations whose currency is withdrawn, and balances of the last closed month in withdrawn currencies.
SELECT NULL::date, external_ref, code::text,
    'is its currency, and was in use until ' || to_char(last_day, 'YYYY-MM-DD')
FROM ({still_in_withdrawn}) AS still
WHERE organization_id BETWEEN %(low)s::bigint AND %(high)s::bigint
UNION ALL
SELECT balance.month::date, external_ref, code::text,
    'carries ' || closing || ', and the currency was in use until ' || to_char(last_day, 'YYYY-MM-DD')
FROM organization_balance AS balance
JOIN currency ON code = balance.currency
JOIN organization ON organization.id = organization_id
WHERE balance.month = (SELECT max(month) FROM ({periods}) AS period WHERE state = 'CLOSED') AND closing <> 0
    AND last_day < CAST(clock_timestamp() AT TIME ZONE 'UTC' AS date)
    AND organization_id BETWEEN %(low)s::bigint AND %(high)s::bigint;


-- name: moved
-- Movements in a currency that was not in use then, by the month of the instant in UTC, which is near enough for what
-- is only listed.
SELECT CAST(date_trunc('month', occurred_at AT TIME ZONE 'UTC') AS date), organization.external_ref,
    code::text, movement.external_ref || ' of ' || to_char(occurred_at AT TIME ZONE 'UTC', 'YYYY-MM-DD')
        || ' over ' || amount || ', and the currency was in use ' || concat_ws(' ',
        'from ' || to_char(first_day, 'YYYY-MM-DD'), 'until ' || to_char(last_day, 'YYYY-MM-DD'))
FROM money_movement AS movement
JOIN currency ON code = movement.currency
JOIN organization ON organization.id = organization_id
WHERE reverses_id IS NULL AND movement.kind <> 'MANUAL'
    AND organization_id BETWEEN %(low)s::bigint AND %(high)s::bigint
    AND {out_of_use};
