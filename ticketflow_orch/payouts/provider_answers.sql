-- name: apply
-- Applies answers to payouts, found by payout_public_id_key, and returns what is to be alerted. Rows are locked in key
-- order; `before` is what they are then, whatever the statement saw when it began.
WITH before AS MATERIALIZED (
    SELECT payout.id, public_id, payout.state AS before, attempt, answer, given.reason, given.provider_ref,
        outbox_event.first_attempt_at AS attempted_at,
        answer = 'CONFIRMED' AND payout.state IN ('CONFIRMED', 'RETURNED')
            AND given.provider_ref <> payout.provider_ref AS other_reference,
        payout.state IN ('REQUESTED', 'IN_DOUBT') AND answer <> payout.state
            AND (answer <> 'HELD' OR payout.state = 'REQUESTED') AS applied
    FROM unnest(
        %(references)s::uuid[], %(attempts)s::integer[], %(answers)s::text[],
        %(reasons)s::text[], %(provider_refs)s::text[]
    ) AS given (reference, attempt, answer, reason, provider_ref)
    JOIN payout ON public_id = given.reference
    LEFT JOIN outbox_event ON dedupe_key = {event_key}
    ORDER BY payout.id FOR UPDATE OF payout
), recorded AS (
    UPDATE payout SET
        first_attempt_at = coalesce(payout.first_attempt_at, attempted_at),
        state = CASE WHEN applied THEN answer ELSE payout.state END,
        reason = CASE WHEN applied THEN coalesce(before.reason, payout.reason) ELSE payout.reason END,
        provider_ref = CASE WHEN applied THEN coalesce(before.provider_ref, payout.provider_ref)
            ELSE payout.provider_ref END,
        answered_at = CASE WHEN applied AND answer IN ('CONFIRMED', 'REJECTED') THEN clock_timestamp()
            ELSE answered_at END
    FROM before WHERE payout.id = before.id AND (applied OR payout.first_attempt_at IS NULL)
)
SELECT before.*, applied AND answer = 'CONFIRMED' AND provider_ref IS NOT NULL AND (
        count(*) FILTER (WHERE applied AND answer = 'CONFIRMED') OVER (PARTITION BY provider_ref) > 1
        OR {shares}) AS shared
FROM before WHERE answer IS NOT NULL AND (answer <> before OR other_reference) ORDER BY id;
