"""Whether events, payouts, reminders, mails, claims and firings agree, as questions to the database.

The retention deletes what is over: a record of which the event or the firing is gone is wrong only if it is younger
than that.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection

from ticketflow_orch.auditing.model import Asked, findings
from ticketflow_orch.settlement.checks import EVERYBODY, Finding


def inconsistent_events(connection: Connection, asked: Asked) -> Iterator[Finding]:
    """Events in the hands of a relay that is long gone, events without their cause, and causes without their event."""
    if asked.members == EVERYBODY:
        yield from findings(connection, _EVENTS, asked.parameters())


def inconsistent_mails(connection: Connection, asked: Asked) -> Iterator[Finding]:
    """Mails of statements without a balance or an event, and events of mails that nobody wrote down."""
    yield from findings(connection, _MAILS, asked.parameters())


def inconsistent_claims(connection: Connection, asked: Asked) -> Iterator[Finding]:
    """Claims that nobody has swept for a day after their lease ended, and windows that were done and never started."""
    if asked.members == EVERYBODY:
        yield from findings(connection, _CLAIMS, asked.parameters())


_KEPT = "clock_timestamp() - %(kept)s::interval"

_EVENTS = f"""
    SELECT CAST(NULL AS date), 'event ' || event_id, '', 'is INFLIGHT, and the lease of ' || owner || ' ended at '
        || to_char(lease_until, 'YYYY-MM-DD HH24:MI') || ' UTC'
    FROM outbox_event WHERE state = 'INFLIGHT' AND lease_until < clock_timestamp() - interval '1 hour'
    UNION ALL
    SELECT CAST(NULL AS date), 'event ' || event_id, '', CASE WHEN public_id IS NULL
            THEN 'asks for a payout that does not exist' ELSE 'asks for a payout that has an event of its own' END
    FROM outbox_event LEFT JOIN payout ON CAST(public_id AS text) = aggregate_id
    WHERE event_type = 'PayoutRequested'
        AND (public_id IS NULL OR aggregate_type <> 'payout' OR dedupe_key <> 'PayoutRequested:' || public_id)
    UNION ALL
    SELECT CAST(month AS date), '', '', 'is settled, and its event MonthSettled is missing'
    FROM settlement_period AS period
    WHERE state <> 'OPEN' AND settled_at > {_KEPT} AND NOT EXISTS (
        SELECT FROM outbox_event WHERE dedupe_key = 'MonthSettled:' || to_char(period.month, 'YYYY-MM'))
    UNION ALL
    SELECT CAST(NULL AS date), 'reminder ' || reminder.id, '', 'is QUEUED, and its event is missing'
    FROM reminder LEFT JOIN outbox_event ON event_id = outbox_event_id
    WHERE reminder.state = 'QUEUED' AND created_at > {_KEPT} AND event_id IS NULL
"""

_MAILS = f"""
    SELECT mail.month::date, external_ref, mail.currency, CASE WHEN balance.month IS NULL
            THEN 'was mailed a statement, and has no balance' ELSE 'is to be mailed, and the event is missing' END
    FROM statement_mail AS mail
    JOIN organization ON organization.id = mail.organization_id
    LEFT JOIN organization_balance AS balance ON balance.organization_id = mail.organization_id
        AND balance.month = mail.month AND balance.currency = mail.currency
    LEFT JOIN outbox_event ON event_id = outbox_event_id
    WHERE mail.organization_id BETWEEN %(low)s::bigint AND %(high)s::bigint
        AND (balance.month IS NULL OR (event_id IS NULL AND created_at > {_KEPT}))
    UNION ALL
    SELECT CAST(payload ->> 'month' || '-01' AS date), payload ->> 'organization', payload ->> 'currency',
        'event ' || event_id || ' mails a statement and is written down nowhere, so another may follow'
    FROM outbox_event JOIN organization ON external_ref = payload ->> 'organization'
    WHERE event_type = 'StatementReady' AND organization.id BETWEEN %(low)s::bigint AND %(high)s::bigint
        AND NOT EXISTS (SELECT FROM statement_mail WHERE outbox_event_id = event_id)
"""

# The key of a claim is its window's instant in UTC to the second, and what else the window has, after a space.
_CLAIMS = f"""
    SELECT CAST(NULL AS date), job || ' ' || idempotency_key, '', 'is PROCESSING, and the lease of ' || owner
        || ' ended at ' || to_char(lease_until, 'YYYY-MM-DD HH24:MI') || ' UTC'
    FROM job_execution WHERE state = 'PROCESSING' AND lease_until < clock_timestamp() - interval '1 day'
    UNION ALL
    SELECT CAST(NULL AS date), job || ' ' || idempotency_key, '', 'is COMPLETED, and nothing says that it was started'
    FROM (
        SELECT job, idempotency_key, substr(idempotency_key, 27) AS rest, CASE
                WHEN idempotency_key ~ '^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}T[0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}[+]00:00( |$)'
                THEN CAST(left(idempotency_key, 25) AS timestamptz)
            END AS scheduled_for
        FROM job_execution WHERE state = 'COMPLETED' AND started_at > {_KEPT} + interval '1 hour'
    ) AS done
    WHERE scheduled_for IS NOT NULL AND NOT EXISTS (
        SELECT FROM job_firing AS firing
        WHERE firing.job = done.job AND coalesce(firing.partition, '') = rest
            AND firing.scheduled_for >= done.scheduled_for
            AND firing.scheduled_for < done.scheduled_for + interval '1 second')
"""
