"""The event types whose delivery takes more than sending their payload, and what is done about each.

The one place that knows both sides: what the relay asks (`outbox.delivery.handlers`) and the rooms that answer. It
reads the settings, and the business clock, for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from sqlalchemy import Connection

from ticketflow_orch import clock
from ticketflow_orch.outbox.delivery import Message
from ticketflow_orch.outbox.delivery.handlers import EventKind, Prepared
from ticketflow_orch.payouts.backing import unbacked
from ticketflow_orch.payouts.provider_answers import record_payouts
from ticketflow_orch.settings import settings


# What mails are made with is imported by the first mail: every run loads this module, and only the relay's sends any.
def _reminders(connection: Connection, messages: Sequence[Message]) -> Mapping[UUID, Prepared]:
    from ticketflow_orch.mail.message import MailOptions
    from ticketflow_orch.mail.reminders import prepare_reminders

    now = clock.now(settings().fixed_clock)
    return prepare_reminders(connection, messages, now=now, options=MailOptions.configured(settings()))


def _statements(connection: Connection, messages: Sequence[Message]) -> Mapping[UUID, Prepared]:
    from ticketflow_orch.mail.message import MailOptions
    from ticketflow_orch.mail.statements import prepare_statements

    return prepare_statements(connection, messages, options=MailOptions.configured(settings()))


KINDS: Mapping[str, EventKind] = {
    "EventCancelled": EventKind(preparer=_reminders),
    "PayoutRequested": EventKind(recorder=record_payouts, guard=unbacked),
    "ReminderChanged": EventKind(preparer=_reminders),
    "ReminderDue": EventKind(preparer=_reminders),
    "StatementReady": EventKind(preparer=_statements),
}
