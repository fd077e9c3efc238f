-- name: append
-- Two at once may meet at the id as well as at the key that it is made of.
INSERT INTO outbox_event
    (event_id, aggregate_type, aggregate_id, event_type, payload, dedupe_key, occurred_at)
VALUES ({derived_event_id_cast_dedupe_key_as_text}, %(aggregate_type)s::text,
    %(aggregate_id)s::text, %(event_type)s::text, %(payload)s::jsonb, %(dedupe_key)s::text,
    %(occurred_at)s::timestamptz)
ON CONFLICT DO NOTHING;
