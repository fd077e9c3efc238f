"""A ticket of an evening in Madrid, and what its holder is reminded of."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Engine

from tests.mail.reading import event
from tests.support.rows import add_event, add_organization, add_reservation, instant
from ticketflow_orch.mail.message import MailOptions
from ticketflow_orch.mail.reminders import prepare_reminders
from ticketflow_orch.outbox.delivery import Message
from ticketflow_orch.outbox.delivery.handlers import Prepared

START = instant("2026-06-02T18:00")
NOW = START - timedelta(hours=24)


def add_ticket(engine: Engine, organization: dict[str, Any] | None = None, **values: Any) -> None:
    """A confirmed reservation called `ticket` of an evening on 2 June at 20:00 in Madrid."""
    of_event = {"starts_at": START, "ends_at": START + timedelta(hours=2), "title": "Aida"} | values
    evening = add_event(engine, add_organization(engine, name="Teatro Real", **organization or {}), **of_event)
    add_reservation(engine, evening, public_ref="ticket", status="CONFIRMED", confirmed_at=instant("2026-05-01T10:00"))


def due(event_date: str = "2026-06-02", ref: str = "ticket", **values: Any) -> Message:
    return event("ReminderDue", {"ref": ref, "kind": "24h", "event_date": event_date}, **values)


def prepare(engine: Engine, *messages: Message, now: datetime = NOW, locale: str = "en") -> dict[UUID, Prepared]:
    with engine.connect() as connection:
        options = MailOptions("tickets@example.com", locale)
        return prepare_reminders(connection, messages, now=now, options=options)


def prepared(engine: Engine, now: datetime = NOW, **values: Any) -> Prepared:
    message = due(**values)
    return prepare(engine, message, now=now)[message.event_id]
