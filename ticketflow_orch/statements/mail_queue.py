"""Who is mailed a statement: the row that makes it once, and the outbox event, in one SQL statement a chunk.

What the mail says is in `mail.statements`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, Engine

from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.jobs.batches import InKeyOrder
from ticketflow_orch.months import Month
from ticketflow_orch.outbox.events import appending, derived_event_id
from ticketflow_orch.settlement.posting import SMALLEST_ID
from ticketflow_orch.statements.model import LeftOut
from ticketflow_orch.statements.queries import next_organizations, organization_left_out


@dataclass(frozen=True, slots=True)
class MailsQueued:
    """How many mails are new, and of which organizations none could be queued, because of what is in their rows."""

    new: int
    left_out: tuple[LeftOut, ...]


def queue_mails(
    engine: Engine,
    month: Month,
    *,
    now: datetime,
    mail_from: datetime | None,
    chunk_size: int,
    left_out: Iterable[LeftOut] = (),
) -> MailsQueued:
    """Queue a mail for each of the month's statements whose organization has a contact, but for those `left_out`.

    At most one for each organization, currency and month, whenever it is asked for. Months that ended before
    `mail_from` are loaded history and mail nobody; without `mail_from` nobody is mailed at all. `now` is the business
    time that the events carry.
    """
    if mail_from is None:
        return MailsQueued(0, ())
    without = {(one.organization_id, one.currency) for one in left_out}
    parameters = {"month": month.first_day, "key": str(month), "mail_from": mail_from, "now": now}
    refused: list[LeftOut] = []

    def queue(connection: Connection, after: int, size: int) -> tuple[int | None, int]:
        organizations = next_organizations(connection, month, after, size)
        if not organizations:
            return None, 0
        here = sorted(key for key in without if organizations[0] <= key[0] <= organizations[-1])
        values = {
            "organizations": organizations,
            "without": [organization for organization, _ in here],
            "in_currency": [currency for _, currency in here],
        }
        return organizations[-1], connection.exec_driver_sql(_QUEUE, parameters | values).rowcount

    def leave_out(connection: Connection, after: int, error: Exception) -> int:
        refused.append(organization_left_out(connection, month, after, error))
        return refused[-1].organization_id

    queued = sum(InKeyOrder(engine, queue, leave_out, first=SMALLEST_ID, size=chunk_size).run())
    return MailsQueued(queued, tuple(refused))


# The key of the mail of a row of `{}`, which has a currency, and of `organization`.
_KEY = "'StatementReady:' || external_ref || ':' || {}.currency || ':' || %(key)s::text"

_EVENTS = appending(
    "StatementReady",
    "mailed JOIN organization ON organization.id = organization_id ORDER BY organization_id, mailed.currency",
    aggregate_type="statement",
    aggregate_id="external_ref || ':' || mailed.currency || ':' || %(key)s::text",
    payload="""jsonb_build_object('organization', external_ref, 'currency', mailed.currency,
        'month', %(key)s::text)""",
    dedupe_key=_KEY.format("mailed"),
    occurred_at="%(now)s::timestamptz",
    event_id="outbox_event_id",
)

_QUEUE = sql(__file__, "queue", event_id=derived_event_id(_KEY.format("balance")), events=_EVENTS)
