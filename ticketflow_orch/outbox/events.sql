-- name: append
-- One event, in the transaction of its cause. Two at once may meet at the id as well as at the key that it is made of,
-- so any conflict means that it is there already.
INSERT INTO outbox_event
    (event_id, aggregate_type, aggregate_id, event_type, payload, dedupe_key, occurred_at)
VALUES ({event_id}, %(aggregate_type)s::text, %(aggregate_id)s::text, %(event_type)s::text, %(payload)s::jsonb,
    %(dedupe_key)s::text, %(occurred_at)s::timestamptz)
ON CONFLICT DO NOTHING;


-- name: append_each
-- An event of one type for each row of a source; `appending` says what its parts stand for.
INSERT INTO outbox_event (event_id, aggregate_type, aggregate_id, event_type, payload, dedupe_key, occurred_at)
SELECT {event_id}, '{aggregate_type}', {aggregate_id}, '{event_type}', {payload}, {dedupe_key}, {occurred_at}
FROM {source}
{on_conflict};


-- name: derived_event_id
-- The id of an event, made of its key and of the installation, so that a restored database makes the same.
derived_id((SELECT id FROM installation), 'outbox_event', {dedupe_key});
