"""Who is mailed a statement: the row that makes it once, and the outbox event, in one statement a chunk."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Engine, text

from ticketflow_orch.database import transaction
from ticketflow_orch.months import Month
from ticketflow_orch.statements.reading import next_organizations


def queue_mails(engine: Engine, month: Month, *, now: datetime, mail_from: datetime | None, chunk_size: int) -> int:
    """Queue a mail for each of the month's statements whose organization has a contact; returns how many are new.

    At most one for each organization, currency and month, whenever it is asked for. Months that ended before
    `mail_from` are loaded history and mail nobody; without `mail_from` nobody is mailed at all. `now` is the business
    time that the events carry.
    """
    if mail_from is None:
        return 0
    queued, after = 0, 0
    parameters = {"month": month.first_day, "key": str(month), "mail_from": mail_from, "now": now}
    while True:
        with transaction(engine) as connection:
            organizations = next_organizations(connection, month, after, chunk_size)
            if not organizations:
                return queued
            queued += connection.execute(_QUEUE, parameters | {"organizations": organizations}).rowcount
        after = organizations[-1]


_QUEUE = text("""
    WITH mailed AS (
        INSERT INTO statement_mail (organization_id, currency, month, outbox_event_id)
        SELECT organization_id, balance.currency, balance.month, new_event_id()
        FROM organization_balance AS balance
        JOIN organization ON organization.id = organization_id AND contact_email <> ''
        JOIN settlement_window ON settlement_window.month = balance.month
            AND settlement_window.timezone = organization.timezone
        WHERE balance.month = CAST(:month AS date) AND organization_id = ANY (CAST(:organizations AS bigint[]))
            AND ends_at >= CAST(:mail_from AS timestamptz)
        ORDER BY organization_id, balance.currency
        ON CONFLICT (organization_id, currency, month) DO NOTHING
        RETURNING organization_id, currency, outbox_event_id
    )
    INSERT INTO outbox_event (event_id, aggregate_type, aggregate_id, event_type, payload, dedupe_key, occurred_at)
    SELECT outbox_event_id, 'statement', external_ref || ':' || mailed.currency || ':' || CAST(:key AS text),
        'StatementReady',
        jsonb_build_object('organization', external_ref, 'currency', mailed.currency, 'month', CAST(:key AS text)),
        'StatementReady:' || external_ref || ':' || mailed.currency || ':' || CAST(:key AS text),
        CAST(:now AS timestamptz)
    FROM mailed JOIN organization ON organization.id = organization_id
    ORDER BY organization_id, mailed.currency
""")
