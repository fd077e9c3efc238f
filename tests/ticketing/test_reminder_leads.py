"""A lead that is changed skips nobody who was not yet due, and a mistyped one reminds nobody early."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, text

from tests.support.rows import add_event, add_organization, add_reservation, instant
from ticketflow_orch.ticketing.reminder_leads import read_leads
from ticketflow_orch.ticketing.reminders import ReminderRules, oldest_due_reminder, reminders_are_due, send_reminders

BEFORE = instant("2026-01-01T00:00")
NOW = instant("2026-06-01T12:00")
HOUR = timedelta(hours=1)
QUARTER = timedelta(minutes=15)


def remind(engine: Engine, after: timedelta, hours: float, **changes: Any) -> int:
    """How many are reminded so long after NOW, with such a lead, by a schedule that asks first."""
    rules = ReminderRules(NOW + after, {"24h": hours * HOUR}, **changes)
    with engine.connect() as connection:
        due = reminders_are_due(connection, rules)
    return send_reminders(engine, rules).queued if due else 0


def add_evening(engine: Engine, hours: float, tickets: int = 2) -> None:
    """An event that begins so many hours after NOW, for which tickets were bought long ago."""
    start = NOW + hours * HOUR
    evening = add_event(engine, add_organization(engine), starts_at=start, ends_at=start + 2 * HOUR)
    for _ in range(tickets):
        add_reservation(
            engine, evening, status="CONFIRMED", created_at=instant("2026-02-01T10:00"),
            confirmed_at=instant("2026-02-01T10:00"),
        )  # fmt: skip


def states(engine: Engine) -> dict[str, int]:
    with engine.connect() as connection:
        return dict(connection.execute(text("SELECT state, count(*) FROM reminder GROUP BY state")).all())  # type: ignore[arg-type]


@pytest.mark.every_server
@pytest.mark.parametrize("mistyped", [48, 240, 0.4])
def test_a_lead_that_is_mistyped_for_a_quarter_of_an_hour_skips_nobody_and_reminds_nobody_early(
    engine: Engine, mistyped: float
) -> None:
    remind(engine, BEFORE - NOW, 24)
    # One of them comes due while the wrong lead holds.
    for hours in (24.3, 30, 40, 200):
        add_evening(engine, hours)
    assert remind(engine, timedelta(0), 24) == 0
    early = remind(engine, QUARTER, mistyped)
    # Whoever came due meanwhile is reminded, by whichever lead is there when it is noticed.
    assert early + remind(engine, 2 * QUARTER, 24) == 2
    assert [remind(engine, hours * HOUR, 24) for hours in (5, 7, 17, 100, 177)] == [0, 2, 2, 0, 2]
    assert states(engine) == {"QUEUED": 8}


def test_a_lead_that_is_made_longer_for_good_skips_nobody(engine: Engine) -> None:
    remind(engine, BEFORE - NOW, 24)
    for hours in (30, 40, 60):
        add_evening(engine, hours)
    remind(engine, timedelta(0), 24)
    # Those that begin in less than two days keep the lead they had; the third has the new one.
    hourly = {hour: remind(engine, hour * HOUR, 48) for hour in range(1, 50)}
    assert {hour: reminded for hour, reminded in hourly.items() if reminded} == {6: 2, 12: 2, 16: 2}


def test_a_lead_that_is_made_shorter_reminds_later_and_once(engine: Engine) -> None:
    remind(engine, BEFORE - NOW, 48)
    for hours in (30, 60):
        add_evening(engine, hours)
    assert remind(engine, timedelta(0), 48) == 2
    hourly = {hour: remind(engine, hour * HOUR, 24) for hour in range(1, 50)}
    assert {hour: reminded for hour, reminded in hourly.items() if reminded} == {36: 2}


def test_a_lead_that_is_made_longer_twice_in_a_row_skips_nobody(engine: Engine) -> None:
    remind(engine, BEFORE - NOW, 24)
    for hours in (30, 50, 80):
        add_evening(engine, hours)
    for after, lead in ((1, 48), (2, 72)):
        remind(engine, after * HOUR, lead)
    for hour in range(3, 60):
        remind(engine, hour * HOUR, 72)
    assert states(engine) == {"QUEUED": 6}


def test_a_kind_newly_enabled_skips_what_was_due_before_also_when_its_lead_changes_at_once(engine: Engine) -> None:
    add_evening(engine, 10)
    add_evening(engine, 30)
    remind(engine, timedelta(0), 24)
    remind(engine, QUARTER, 48)
    assert states(engine) == {"SKIPPED": 2}
    assert [remind(engine, hours * HOUR, 48) for hours in (5, 6, 7)] == [0, 2, 0]


def test_what_two_processes_with_different_leads_do_by_turns_leaves_few_rows_and_skips_nobody(engine: Engine) -> None:
    remind(engine, BEFORE - NOW, 24)
    add_evening(engine, 400)
    for quarter in range(200):
        remind(engine, quarter * 8 * QUARTER, 24 if quarter % 2 else 48)
    assert states(engine) == {"QUEUED": 2}
    with engine.connect() as connection:
        leads = read_leads(connection, "24h", NOW + 400 * HOUR)
        rows = connection.execute(text("SELECT count(*) FROM reminder_lead")).scalar_one()
    assert leads is not None
    assert rows < 100


def test_a_clock_that_stands_still_or_runs_back_changes_a_lead_all_the_same(engine: Engine) -> None:
    remind(engine, timedelta(0), 24)
    for after, lead in ((timedelta(0), 48), (-HOUR, 12), (timedelta(0), 24)):
        remind(engine, after, lead)
        with engine.connect() as connection:
            known = read_leads(connection, "24h", NOW)
        assert known is not None
        assert known.lead == lead * HOUR


def test_since_when_a_reminder_has_been_due_is_by_the_lead_that_it_keeps(engine: Engine) -> None:
    remind(engine, BEFORE - NOW, 24)
    add_evening(engine, 30)
    remind(engine, timedelta(0), 48)

    def due(now: datetime) -> datetime | None:
        with engine.connect() as connection:
            return oldest_due_reminder(connection, ReminderRules(now, {"24h": 48 * HOUR}))

    assert due(NOW + 5 * HOUR) is None
    assert due(NOW + 8 * HOUR) == NOW + 6 * HOUR
