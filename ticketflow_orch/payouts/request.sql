-- name: due
-- The balances of a month that are to be paid, behind a key.
FROM organization_balance
WHERE month = %(month)s::date AND payable > 0 AND month >= {pays_from}
    AND (organization_id, currency) > (%(after_organization)s::bigint, %(after_currency)s::char(3));


-- name: parked_no_more
-- Of a row of payout.
payout.state = 'HELD' AND payout.reason = '{parked}' AND NOT {is_parked};


-- name: next
-- The payout that cannot be written: the first of those that the chunk would have taken.
SELECT organization_id, due.currency, external_ref
FROM (SELECT organization_id, currency {due} ORDER BY organization_id, currency LIMIT 1) AS due
JOIN organization ON organization.id = organization_id;


-- name: write
-- A chunk of payouts in key order, written and asked for. Those of an organization that is parked, of a currency in
-- review or with too many anomalies are held. What is in question is what was wrong at the end of the month and still
-- is, whatever made it worse since; anomalies are found by movement_anomaly_open_idx.
WITH due AS MATERIALIZED (
    SELECT organization_id, currency, payable,
        CASE WHEN {is_parked} THEN '{parked}' END AS parked
    {due}
    ORDER BY organization_id, currency LIMIT %(size)s::bigint
), candidate AS MATERIALIZED (
    SELECT movement_id, why, latest_id, coalesce(ends_at, 'infinity') AS month_ends_at
    FROM due
    JOIN movement_anomaly USING (organization_id, currency)
    JOIN organization ON organization.id = organization_id
    LEFT JOIN settlement_window AS cut ON cut.timezone = organization.timezone
        AND cut.month = %(month)s::date
    WHERE {open}
), questionable AS MATERIALIZED (
    SELECT organization_id, currency, sum(least(by_now.questionable, by_then.questionable)) AS amount
    FROM ({standing_now}) AS by_now
    JOIN ({standing_then}) AS by_then USING (movement_id, why, organization_id, currency)
    GROUP BY organization_id, currency
), judged AS (
    SELECT due.*, review, CASE WHEN amount > %(share)s::numeric * payable THEN 'anomalies: ' || round(
            amount * power(10::numeric, (-exponent)::numeric), exponent) || ' ' || due.currency
        END AS anomalies
    FROM due
    JOIN currency ON code = due.currency
    LEFT JOIN questionable ON questionable.organization_id = due.organization_id
        AND questionable.currency = due.currency
    LEFT JOIN unnest(%(held_currencies)s::char(3)[], %(held_reasons)s::text[]) AS held (code_held, review)
        ON code_held = due.currency
), written AS (
    INSERT INTO payout (public_id, organization_id, currency, month, amount, state, reason, run_id, anomalies_to)
    SELECT derived_id((SELECT id FROM installation), 'payout',
            external_ref || ':' || judged.currency || ':' || to_char(%(month)s::date, 'YYYY-MM')),
        organization_id, judged.currency, %(month)s::date, payable,
        CASE WHEN num_nonnulls(review, anomalies, parked) = 0 THEN 'REQUESTED' ELSE 'HELD' END,
        nullif(concat_ws('; ', review, anomalies, parked), ''), %(run_id)s::text,
        CASE WHEN anomalies IS NOT NULL THEN (SELECT searched_to FROM anomaly_search) END
    FROM judged JOIN organization ON organization.id = organization_id
    ORDER BY organization_id, judged.currency
    ON CONFLICT DO NOTHING
    RETURNING public_id, organization_id, currency, month, amount, state
), let_go AS (
    UPDATE payout SET state = 'REQUESTED', reason = NULL FROM due
    WHERE payout.organization_id = due.organization_id AND payout.currency = due.currency
        AND month = %(month)s::date AND {parked_no_more}
    RETURNING public_id, payout.organization_id, payout.currency, month, amount, state
), woken AS (
    {woken}
), asked AS (
    SELECT * FROM written WHERE state = 'REQUESTED' UNION ALL SELECT * FROM let_go
), sent AS (
    {events}
)
SELECT
    (SELECT count(*) FROM due) AS due,
    (SELECT count(*) FROM asked) AS requested,
    (SELECT count(*) FROM written WHERE state = 'HELD') AS held,
    last.organization_id AS last_organization, last.currency AS last_currency
FROM (VALUES (1)) AS one LEFT JOIN LATERAL (
    SELECT * FROM due ORDER BY organization_id DESC, currency DESC LIMIT 1) AS last ON true;


-- name: due_months
-- Closed months with something to request, or with a payout that only a parking held which is over.
SELECT month FROM ({periods}) AS period
WHERE state = 'CLOSED' AND month >= %(first)s::date AND (
    (paid_at IS NULL AND (NOT {held} OR {unrequested}))
    OR EXISTS (SELECT FROM payout WHERE payout.month = period.month AND {parked_no_more}))
ORDER BY month;
