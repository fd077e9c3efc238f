-- name: unpaid
-- What closed months owe although payouts are off, or begin with a later month, by month and currency.
SELECT balance.month::date AS month, balance.currency, exponent, count(*) AS balances,
    CAST(sum(payable) AS bigint) AS amount,
    coalesce('payouts begin with ' || to_char(begin, 'YYYY-MM'), 'payouts are off') AS why
FROM organization_balance AS balance
JOIN currency ON code = balance.currency
JOIN organization ON organization.id = organization_id
CROSS JOIN LATERAL (SELECT {pays_from} AS begin) AS paid
WHERE payable > 0 AND organization_id BETWEEN %(low)s::bigint AND %(high)s::bigint
    AND (%(only)s::date IS NULL OR balance.month = %(only)s::date)
    AND (begin IS NULL OR balance.month < begin)
    AND NOT EXISTS (
        SELECT FROM payout
        WHERE payout.organization_id = balance.organization_id AND payout.currency = balance.currency
            AND payout.month = balance.month)
GROUP BY balance.month, balance.currency, exponent, begin
ORDER BY balance.month, balance.currency, begin;


-- name: agrees
-- Which states of its `event` a `payout` may meet. The event is gone where the retention deleted it, or where a payout
-- was rejected before it was ever asked for; what is in doubt may be asked for again by the commands of the outbox.
CASE payout.state
    WHEN 'HELD' THEN event.state IS NULL OR event.state = 'HELD'
    WHEN 'REQUESTED' THEN event.state IS NULL OR event.state IN ('PENDING', 'INFLIGHT', 'DELIVERED', 'SUPPRESSED')
    WHEN 'IN_DOUBT' THEN true
    ELSE event.state IS NULL OR event.state IN ('DELIVERED', 'SUPPRESSED')
END;


-- name: unbacked
-- Payouts that their closed balance does not pay, and payouts whose event is missing, asks for another sum or is in a
-- state that does not agree; the event by its dedupe key.
SELECT payout.month::date, coalesce(external_ref, 'id ' || payout.organization_id), payout.currency,
    'payout ' || public_id || ' of ' || payout.amount || ' is ' || payout.state || CASE
        WHEN period.state IS DISTINCT FROM 'CLOSED' THEN ', and the month is ' || coalesce(period.state, 'unknown')
        WHEN payable IS DISTINCT FROM payout.amount
            THEN ', and the balance pays ' || coalesce(payable::text, 'nothing')
        WHEN event.state IS NULL THEN ', and its event is missing'
        WHEN NOT ({agrees}) THEN ', and its event is ' || event.state
        ELSE ', and its event asks for ' || coalesce(payload ->> 'amount', 'nothing') || ' '
            || coalesce(payload ->> 'currency', '')
    END
FROM payout
LEFT JOIN ({periods}) AS period ON period.month = payout.month
LEFT JOIN organization_balance AS balance ON balance.organization_id = payout.organization_id
    AND balance.month = payout.month AND balance.currency = payout.currency
LEFT JOIN organization ON organization.id = payout.organization_id
LEFT JOIN outbox_event AS event ON dedupe_key = 'PayoutRequested:' || public_id
WHERE payout.organization_id BETWEEN %(low)s::bigint AND %(high)s::bigint AND (
    period.state IS DISTINCT FROM 'CLOSED' OR payable IS DISTINCT FROM payout.amount OR NOT ({agrees})
    OR (event.state IS NULL AND payout.created_at > clock_timestamp() - %(kept)s::interval
        AND payout.state NOT IN ('HELD', 'REJECTED'))
    OR (event.state IS NOT NULL AND (payload ->> 'amount', payload ->> 'currency')
        IS DISTINCT FROM (payout.amount::text, payout.currency::text)));


-- name: shared_references
-- Payouts of which the provider knows several by one reference; those that came back aside.
SELECT month::date, coalesce(external_ref, 'id ' || organization_id), payout.currency,
    'payout ' || public_id || ' of ' || amount || ' is one of ' || sharing || ' that the provider calls '
        || provider_ref
FROM (
    SELECT payout.*, count(*) OVER (PARTITION BY provider_ref) AS sharing FROM payout
    WHERE provider_ref IS NOT NULL AND state NOT IN ('REJECTED', 'RETURNED')
) AS payout
LEFT JOIN organization ON organization.id = organization_id
WHERE sharing > 1 AND organization_id BETWEEN %(low)s::bigint AND %(high)s::bigint;


-- name: returned_otherwise
-- Balances that took back another sum than the payouts that name their month, or one that was due no earlier.
WITH came_back AS (
    SELECT organization_id, currency, returned_month::date AS month, sum(amount) AS amount,
        max(month::date) AS last_paid
    FROM payout WHERE returned_month IS NOT NULL AND organization_id BETWEEN %(low)s::bigint AND %(high)s::bigint
    GROUP BY organization_id, currency, returned_month
), taken AS (
    SELECT organization_id, currency, month::date AS month, returned FROM organization_balance
    WHERE returned <> 0 AND organization_id BETWEEN %(low)s::bigint AND %(high)s::bigint
)
SELECT month, coalesce(external_ref, 'id ' || organization_id), different.currency,
    'took back ' || coalesce(returned, 0) || ', and payouts of ' || coalesce(amount, 0) || ' came back'
        || CASE WHEN last_paid >= month THEN ' before they were due' ELSE '' END
FROM (SELECT * FROM taken FULL JOIN came_back USING (organization_id, currency, month)) AS different
LEFT JOIN organization ON organization.id = organization_id
WHERE returned IS DISTINCT FROM amount OR last_paid >= month;
