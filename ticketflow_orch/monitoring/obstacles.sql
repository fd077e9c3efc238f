-- name: unbacked
-- Requests of payouts that no payout backs, of those that the relay has put aside, which are few
-- (outbox_event_due_idx): what they ask for, what is wrong, and the command that ends them.
SELECT * FROM (
    SELECT event_id, event.state, occurred_at, event.id, {objection} AS objection,
        concat_ws(' ', payload ->> 'amount', payload ->> 'currency') AS asked,
        CASE WHEN dedupe_key = 'PayoutRequested:' || public_id
            THEN 'ticketflow payouts resolve ' || public_id || ' --as rejected --reason TEXT'
            ELSE 'ticketflow outbox resolve ' || event_id || ' --as dropped' END AS out
    FROM {payout_of_event}
    WHERE event_type = 'PayoutRequested' AND event.ended_at IS NULL AND event.available_at IS NULL
) AS aside
WHERE objection IS NOT NULL
ORDER BY id LIMIT %(most)s::bigint;


-- name: withdrawn
-- Currencies that are not in use any more and still are those of organizations.
SELECT code, last_day, count(*) AS organizations, min(external_ref) AS external_ref,
    (last_day + 1)::timestamp AT TIME ZONE 'UTC' AS since
FROM ({still_in_withdrawn}) AS still
GROUP BY code, last_day
ORDER BY code;


-- name: given_up
-- The last pass of a month that is not closed; one that let go of an undone import has no reason, and another follows.
SELECT period.month, last.number, last.finished_at, last.why
FROM ({periods}) AS period CROSS JOIN LATERAL (
    SELECT pass AS number, state, finished_at, given_up_because AS why FROM settlement_pass
    WHERE month = period.month ORDER BY pass DESC LIMIT 1
) AS last
WHERE period.state <> 'CLOSED' AND last.state = 'GIVEN_UP' AND last.why IS NOT NULL
ORDER BY period.month;


-- name: not_closed
-- The first month that is settled and not closed.
SELECT month, state, settled_at FROM ({periods}) AS period
WHERE state IN ('SETTLED', 'CLOSING') ORDER BY month LIMIT 1;


-- name: not_paid
-- Closed months that are to be paid and are not, unless a payout of theirs is held.
SELECT month, closed_at FROM ({periods}) AS period
WHERE state = 'CLOSED' AND month >= %(from)s::date AND paid_at IS NULL AND NOT EXISTS (
    SELECT FROM payout WHERE payout.month = period.month AND payout.state = 'HELD')
ORDER BY month;


-- name: off_for_some
-- Since the last month was closed.
SELECT max(closed_at) FROM ({periods}) AS period
WHERE (SELECT payouts_from IS NULL FROM installation)
    AND EXISTS (SELECT FROM organization WHERE payouts_from IS NOT NULL);


-- name: opening_before_business
-- Opening balances that no balance takes in, since nothing was ever settled.
SELECT count(*) AS balances, min(external_ref) AS external_ref,
    min(coalesce(imported_at, %(first)s::timestamptz)) AS since, now() AS now
FROM opening_balance
JOIN organization ON organization.id = organization_id
LEFT JOIN data_import ON data_import.id = opening_balance.import_id
WHERE balance_month IS NULL AND amount <> 0 AND NOT EXISTS ({periods})
HAVING count(*) > 0;
