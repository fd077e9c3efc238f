-- name: shown
-- An alert under the names of the fields of `Standing`.
id, kind, subject, severity, first_at, last_at, occurrences, payload, resolved_at, resolved_by;


-- name: note
-- An occurrence that is known adds nothing to its alert. Of two that are noted at once the second waits at the alert's
-- row, or at alert_group_open_idx, and joins it.
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
    RETURNING id, key, occurrences, first_at, told_at = last_at AS is_sent
), noted AS (
    INSERT INTO alert (kind, key, group_id, event_id)
    SELECT %(kind)s::text, %(key)s::text, id, %(event_id)s::uuid FROM opened
    ON CONFLICT DO NOTHING RETURNING kind
)
SELECT key, occurrences, first_at, is_sent FROM opened WHERE EXISTS (SELECT FROM noted);


-- name: is_over
-- Whether an occurrence was noted whose alert is resolved, and none of its subject is open; by the unique keys.
SELECT EXISTS (
    SELECT FROM alert JOIN alert_group ON alert_group.id = group_id
    WHERE alert.kind = %(kind)s::text AND alert.key = %(key)s::text AND resolved_at IS NOT NULL
) AND NOT EXISTS (
    SELECT FROM alert_group WHERE kind = %(kind)s::text AND subject = %(subject)s::text AND resolved_at IS NULL);


-- name: standing
-- The open alerts, the most urgent first; by alert_group_open_idx, which has no others.
SELECT {shown} FROM alert_group
WHERE resolved_at IS NULL AND (%(kinds)s::text[] IS NULL OR kind = ANY (%(kinds)s::text[]))
ORDER BY array_position(ARRAY['PAGE', 'TICKET', 'INFO'], severity), first_at, id;


-- name: latest
-- The last alerts, open or resolved, by the primary key.
SELECT {shown} FROM alert_group ORDER BY id DESC LIMIT %(most)s::bigint;


-- name: resolve
-- End open alerts, locked in the one order in which all who change several take them.
UPDATE alert_group SET resolved_at = clock_timestamp(), resolved_by = %(by)s::text
WHERE resolved_at IS NULL AND id IN (
    SELECT id FROM alert_group WHERE id = ANY (%(ids)s::bigint[]) ORDER BY kind, subject FOR UPDATE)
RETURNING {shown}, key;


-- name: repeat
-- Open alerts that somebody must look at and that were last sent long enough ago; what another session is changing is
-- left for the next time.
UPDATE alert_group SET told_at = clock_timestamp()
WHERE id IN (
    SELECT id FROM alert_group
    WHERE resolved_at IS NULL AND severity <> 'INFO'
        AND told_at < clock_timestamp() - %(again_after)s::interval
    ORDER BY kind, subject FOR UPDATE SKIP LOCKED)
RETURNING kind, key, subject, severity, payload, occurrences, first_at, told_at;
