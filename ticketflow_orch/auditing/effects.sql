-- name: events
-- Events that were in flight for an hour beyond their lease, events without their cause, and causes without their
-- event, by the dedupe key that the cause gives it. The retention deletes events, so only younger causes are asked.
SELECT NULL::date, 'event ' || event_id, '', 'is INFLIGHT, and the lease of ' || owner || ' ended at '
    || to_char(lease_until, 'YYYY-MM-DD HH24:MI') || ' UTC'
FROM outbox_event WHERE state = 'INFLIGHT' AND lease_until < clock_timestamp() - interval '1 hour'
UNION ALL
SELECT NULL::date, 'event ' || event_id, '', CASE WHEN public_id IS NULL
        THEN 'asks for a payout that does not exist' ELSE 'asks for a payout that has an event of its own' END
FROM outbox_event LEFT JOIN payout ON public_id::text = aggregate_id
WHERE event_type = 'PayoutRequested'
    AND (public_id IS NULL OR aggregate_type <> 'payout' OR dedupe_key <> 'PayoutRequested:' || public_id)
UNION ALL
SELECT month::date, '', '', 'is settled, and its event MonthSettled is missing'
FROM ({periods}) AS period
WHERE state <> 'OPEN' AND settled_at > clock_timestamp() - %(kept)s::interval AND NOT EXISTS (
    SELECT FROM outbox_event WHERE dedupe_key = 'MonthSettled:' || to_char(period.month, 'YYYY-MM'))
UNION ALL
SELECT NULL::date, 'reminder ' || reminder.id, '', 'is QUEUED, and its event is missing'
FROM reminder LEFT JOIN outbox_event ON event_id = outbox_event_id
WHERE reminder.state = 'QUEUED' AND created_at > clock_timestamp() - %(kept)s::interval AND event_id IS NULL;


-- name: mails
-- Mails of statements without a balance or an event, and events of mails that statement_mail does not know.
SELECT mail.month::date, external_ref, mail.currency, CASE WHEN balance.month IS NULL
        THEN 'was mailed a statement, and has no balance' ELSE 'is to be mailed, and the event is missing' END
FROM statement_mail AS mail
JOIN organization ON organization.id = mail.organization_id
LEFT JOIN organization_balance AS balance ON balance.organization_id = mail.organization_id
    AND balance.month = mail.month AND balance.currency = mail.currency
LEFT JOIN outbox_event ON event_id = outbox_event_id
WHERE mail.organization_id BETWEEN %(low)s::bigint AND %(high)s::bigint
    AND (balance.month IS NULL OR (event_id IS NULL AND created_at > clock_timestamp() - %(kept)s::interval))
UNION ALL
SELECT CAST(payload ->> 'month' || '-01' AS date), payload ->> 'organization', payload ->> 'currency',
    'event ' || event_id || ' mails a statement and is written down nowhere, so another may follow'
FROM outbox_event JOIN organization ON external_ref = payload ->> 'organization'
WHERE event_type = 'StatementReady' AND organization.id BETWEEN %(low)s::bigint AND %(high)s::bigint
    AND NOT EXISTS (SELECT FROM statement_mail WHERE outbox_event_id = event_id);


-- name: claims
-- Claims whose lease ended a day ago, and windows that were done and have no firing. The key of a claim is its
-- window's instant in UTC to the second, and what else the window has, after a space.
SELECT NULL::date, job || ' ' || idempotency_key, '', 'is PROCESSING, and the lease of ' || owner
    || ' ended at ' || to_char(lease_until, 'YYYY-MM-DD HH24:MI') || ' UTC'
FROM job_execution WHERE state = 'PROCESSING' AND lease_until < clock_timestamp() - interval '1 day'
UNION ALL
SELECT NULL::date, job || ' ' || idempotency_key, '', 'is COMPLETED, and nothing says that it was started'
FROM (
    SELECT job, idempotency_key, substr(idempotency_key, 27) AS rest, CASE
            WHEN idempotency_key ~ '^\d\d\d\d-\d\d-\d\dT\d\d:\d\d:\d\d[+]00:00( |$)'
            THEN CAST(left(idempotency_key, 25) AS timestamptz)
        END AS scheduled_for
    FROM job_execution
    WHERE state = 'COMPLETED' AND started_at > clock_timestamp() - %(kept)s::interval + interval '1 hour'
) AS done
WHERE scheduled_for IS NOT NULL AND NOT EXISTS (
    SELECT FROM job_firing AS firing
    WHERE firing.job = done.job AND coalesce(firing.partition, '') = rest
        AND firing.scheduled_for >= done.scheduled_for
        AND firing.scheduled_for < done.scheduled_for + interval '1 second');
