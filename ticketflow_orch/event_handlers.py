"""The event types whose delivery takes more than sending their payload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from sqlalchemy import Connection

from ticketflow_orch.outbox.delivery import Message
from ticketflow_orch.outbox.delivery.handlers import (
    EventKind,
    Prepared,
    Preparer,
    Recorded,
    Recorder,
    Rendered,
    Suppressed,
)
from ticketflow_orch.payouts.backing import unbacked
from ticketflow_orch.payouts.provider_answers import record_payouts

__all__ = ["KINDS", "EventKind", "Prepared", "Preparer", "Recorded", "Recorder", "Rendered", "Suppressed"]


# What mails are made with is imported by the first mail: every run loads this module, and only the relay's sends any.
def _reminders(connection: Connection, messages: Sequence[Message]) -> Mapping[UUID, Prepared]:
    from ticketflow_orch.mail.reminders import reminders_prepared

    return reminders_prepared(connection, messages)


def _statements(connection: Connection, messages: Sequence[Message]) -> Mapping[UUID, Prepared]:
    from ticketflow_orch.mail.statements import statements_prepared

    return statements_prepared(connection, messages)


KINDS: Mapping[str, EventKind] = {
    "EventCancelled": EventKind(preparer=_reminders),
    "PayoutRequested": EventKind(recorder=record_payouts, guard=unbacked),
    "ReminderChanged": EventKind(preparer=_reminders),
    "ReminderDue": EventKind(preparer=_reminders),
    "StatementReady": EventKind(preparer=_statements),
}
