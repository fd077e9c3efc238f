-- name: named_otherwise
-- Whether an event of the outbox was named under another installation's id. The newest are asked, by the key; an id is
-- of version 8 where an installation named it.
SELECT EXISTS (
    SELECT FROM (SELECT event_id, dedupe_key FROM outbox_event ORDER BY outbox_event.id DESC LIMIT 20) AS named
    WHERE substr(event_id::text, 15, 1) = '8'
        AND event_id <> derived_id(%(installation)s::uuid, 'outbox_event', dedupe_key));


-- name: fill
-- Take over what decides about money, once.
UPDATE installation SET business_timezone = %(business_timezone)s::text,
    first_month = %(first_month)s::date, payouts_from = %(payouts_from)s::date,
    mail_from = %(mail_from)s::timestamptz, auto_close = %(auto_close)s::boolean,
    rehearsal = %(rehearsal)s::boolean, changed_by = %(by)s::text
WHERE business_timezone IS NULL;


-- name: write
-- Change one value; a trigger keeps the one before in installation_change.
UPDATE installation SET {column} = %(value)s::{type}, changed_by = %(by)s::text;
