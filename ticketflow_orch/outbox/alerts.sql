-- name: note
-- An occurrence that is known adds nothing to its alert. Of two that are noted at once the second waits at the alert's
-- row, or at the index, and joins it.
WITH opened AS (
    INSERT INTO alert_group AS one (kind, subject, severity, key, payload, first_at, last_at, told_at)
    SELECT %(kind)s::text, %(subject)s::text, %(severity)s::text, %(key)s::text,
        %(payload)s::jsonb, at, at, at
    FROM (SELECT clock_timestamp() AS at) AS clock
    WHERE NOT EXISTS (SELECT FROM alert WHERE kind = %(kind)s::text AND key = %(key)s::text)
    ON CONFLICT (kind, subject) WHERE resolved_at IS NULL DO UPDATE SET
        occurrences = one.occurrences + 1, last_at = excluded.last_at, payload = excluded.payload,
        told_at = CASE WHEN one.told_at < excluded.last_at - %(again_after)s::interval
            THEN excluded.last_at ELSE one.told_at END
    RETURNING id, key, occurrences, first_at, told_at = last_at AS is_told
), noted AS (
    INSERT INTO alert (kind, key, group_id, event_id)
    SELECT %(kind)s::text, %(key)s::text, id, %(event_id)s::uuid FROM opened
    ON CONFLICT DO NOTHING RETURNING kind
)
SELECT key, occurrences, first_at, is_told FROM opened WHERE EXISTS (SELECT FROM noted);


-- name: standing
SELECT {columns} FROM alert_group
WHERE resolved_at IS NULL AND (%(kinds)s::text[] IS NULL OR kind = ANY (%(kinds)s::text[]))
ORDER BY array_position(ARRAY['PAGE', 'TICKET', 'INFO'], severity), first_at, id;


-- name: latest
SELECT {columns} FROM alert_group ORDER BY id DESC LIMIT %(most)s::bigint;


-- name: resolve
UPDATE alert_group SET resolved_at = clock_timestamp(), resolved_by = %(by)s::text
WHERE resolved_at IS NULL AND id IN (
    SELECT id FROM alert_group WHERE id = ANY (%(ids)s::bigint[]) ORDER BY kind, subject FOR UPDATE)
RETURNING {columns}, key;
