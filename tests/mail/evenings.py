"""An evening with tickets, and who is reminded of it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Engine

from tests.mail.relayed import Mailbox, relay, window
from tests.support.rows import add_event, add_organization, add_reservation, instant
from ticketflow_orch.ticketing.reminders import ReminderRules, send_reminders

BEFORE = instant("2026-01-01T00:00")
START = instant("2026-06-02T18:00")
EVE = START - timedelta(hours=24)
HOUR = timedelta(hours=1)


def enable(engine: Engine, kinds: dict[str, timedelta] | None = None) -> None:
    send_reminders(engine, ReminderRules(BEFORE, kinds or {"24h": timedelta(hours=24)}))


def add_evening(engine: Engine, tickets: int = 1, **values: Any) -> int:
    organization = add_organization(engine, name="Teatro Real", contact_email="kasse@teatro.example")
    of_event = {"starts_at": START, "ends_at": START + 3 * HOUR, "title": "Aida"} | values
    evening = add_event(engine, organization, **of_event)
    for number in range(1, tickets + 1):
        add_reservation(
            engine, evening, public_ref=f"ticket-{number}", status="CONFIRMED", created_at=instant("2026-02-01T10:00"),
            confirmed_at=instant("2026-02-01T10:00"), buyer_email=f"buyer{number}@example.com",
        )  # fmt: skip
    return evening


def reminded(engine: Engine, at: datetime = EVE, kinds: dict[str, timedelta] | None = None) -> Mailbox:
    """The mailbox of the one buyer of the evening, who was reminded at that instant."""
    enable(engine, kinds)
    add_evening(engine)
    box = Mailbox()
    window(engine, at, kinds)
    relay(engine, at, box)
    return box
