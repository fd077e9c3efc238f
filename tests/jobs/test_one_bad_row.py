"""One bad row stops only itself, job by job: the cells of the table in docs/operators.md that no other file tests."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from tests.mail.reading import read
from tests.outbox.relay.world import delivery, run
from tests.support.payable import rows
from tests.support.poison import cure, poison
from tests.support.rows import add_event, add_movement, add_organization, add_reservation, instant
from tests.support.settled import tamper
from tests.support.sql_statements import execute
from tests.support.statements import MARCH, close, state
from tests.support.tickets import add_ticket, prepared
from ticketflow_orch import clock
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.event_handlers import KINDS
from ticketflow_orch.reports.explain import explain
from ticketflow_orch.ticketing.events import close_events
from ticketflow_orch.ticketing.lifecycle import LifecycleRules
from ticketflow_orch.ticketing.reminders import ReminderRules, send_reminders
from ticketflow_orch.ticketing.reservations import expire_reservations

NOW = instant("2026-06-02T04:30")
RULES = LifecycleRules(now=NOW, run_id="run")
MARS = "Mars/Olympus"


def statuses(engine: Engine, table: str) -> list[str]:
    return [status for (status,) in rows(engine, f"SELECT status FROM {table} ORDER BY id")]


@pytest.mark.parametrize("chunk_size", [1, 2, 5000])
def test_an_event_that_cannot_be_closed_is_left_out_with_its_reservations_and_closed_later(
    engine: Engine, chunk_size: int
) -> None:
    organization = add_organization(engine)
    events = [add_event(engine, organization, external_ref=name) for name in ("one", "bad", "two")]
    for event in events:
        add_reservation(engine, event)
    poison(engine, "event", "NEW.external_ref = 'bad'", "UPDATE")
    rules = LifecycleRules(now=NOW, run_id="run", chunk_size=chunk_size)
    closed = close_events(engine, rules)
    assert (closed.events, closed.reservations_expired, closed.left) == (2, 2, 1)
    assert [(row.id, row.error) for row in closed.bad] == [(events[1], "division by zero")]
    assert statuses(engine, "event") == ["CLOSED", "OPEN", "CLOSED"]
    cure(engine, "event")
    assert close_events(engine, rules).events == 1


def test_a_zone_that_nobody_knows_keeps_no_event_open_and_no_reservation_held(engine: Engine) -> None:
    organization = add_organization(engine, timezone=MARS)
    over = add_event(engine, organization, timezone=MARS)
    coming = add_event(engine, organization, timezone=MARS, ends_at=NOW + timedelta(days=9))
    for event in (over, coming):
        add_reservation(engine, event)
    assert close_events(engine, RULES).events == 1
    assert expire_reservations(engine, RULES).reservations == 1
    assert statuses(engine, "event") == ["CLOSED", "OPEN"]
    assert statuses(engine, "reservation") == ["EXPIRED", "EXPIRED"]


def test_a_reminder_whose_event_lost_its_zone_is_dead_in_the_end_and_the_others_are_sent(engine: Engine) -> None:
    now = clock.now()
    start = now + timedelta(hours=20)
    organization = add_organization(engine)
    kinds = {"24h": timedelta(hours=24)}
    send_reminders(engine, ReminderRules(now - timedelta(days=9), kinds))
    for name in ("one", "bad", "two"):
        evening = add_event(
            engine, organization, external_ref=name, starts_at=start, ends_at=start + timedelta(hours=2)
        )
        add_reservation(engine, evening, public_ref=name, status="CONFIRMED", confirmed_at=instant("2026-05-01T10:00"))
    assert send_reminders(engine, ReminderRules(now, kinds)).queued == 3
    execute(engine, "UPDATE event SET timezone = :zone WHERE external_ref = 'bad'", zone=MARS)
    run(engine, delivery(), KINDS)
    ends = rows(
        engine, "SELECT payload ->> 'ref', state FROM outbox_event WHERE event_type = 'ReminderDue' ORDER BY id"
    )
    assert ends == [("one", "DELIVERED"), ("bad", "DEAD"), ("two", "DELIVERED")]
    told = rows(engine, "SELECT payload ->> 'error' FROM outbox_event WHERE event_type = 'OutboxEventDead'")
    assert [MARS in error for (error,) in told] == [True]


def test_the_mail_of_a_statement_that_cannot_be_made_is_dead_in_the_end_and_the_others_are_sent(
    engine: Engine, tmp_path: Path
) -> None:
    for name in ("apollo", "bijou", "capitol", "dome"):
        theatre = add_organization(engine, external_ref=name, contact_email="a@b.example")
        for currency in ("EUR", "JPY"):
            add_movement(engine, theatre, 10_000, "2026-03-10T10:00", currency=currency)
    close(engine, MARCH)
    assert state(engine, tmp_path, mail_from=instant("2020-01-01T00:00")).mails == 8
    tamper(
        engine,
        "UPDATE ledger_entry SET captures = captures + 1, net = net + 1 FROM organization "
        "WHERE organization.id = organization_id AND external_ref = 'bijou' AND ledger_entry.currency = 'EUR'",
    )
    tamper(engine, f"UPDATE organization SET timezone = '{MARS}' WHERE external_ref = 'capitol'")
    run(engine, delivery(), KINDS)
    ends = rows(
        engine,
        "SELECT aggregate_id, state FROM outbox_event WHERE event_type = 'StatementReady' AND state <> 'DELIVERED' "
        "ORDER BY id",
    )
    dead = ("bijou:EUR:2026-03", "capitol:EUR:2026-03", "capitol:JPY:2026-03")
    assert ends == [(one, "DEAD") for one in dead]


@pytest.mark.parametrize(
    "odd",
    [
        {"title": "x" * 10_000},
        {"title": ""},
        {"title": "\u0001\u202e\u2028\r\n"},
        {"organization": {"locale": "xx_YY@klingon"}},
        {"organization": {"locale": "e\u0001s"}},
        {"organization": {"contact_email": "nobody"}},
    ],
    ids=str,
)
def test_texts_that_are_odd_stop_no_reminder(engine: Engine, odd: dict[str, Any]) -> None:
    add_ticket(engine, **odd)
    subject = str(read(prepared(engine))["Subject"])
    assert subject.startswith("Reminder: ")
    assert len(subject) <= 300


def test_an_organization_in_an_unknown_zone_has_no_explanation_and_takes_none_from_others(engine: Engine) -> None:
    add_organization(engine, external_ref="olympus", timezone=MARS)
    add_organization(engine, external_ref="madrid")
    with engine.connect() as connection:
        with pytest.raises(TicketflowError, match="Time zone 'Mars/Olympus' is unknown to tzdata"):
            explain(connection, "olympus", MARCH)
        assert explain(connection, "madrid", MARCH).movements == ()
