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
