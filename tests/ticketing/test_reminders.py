"""Reminders, by their business rules."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, text

from tests.support.rows import add_event, add_organization, add_reservation, instant
from tests.support.sessions import becomes, waiting_for_a_transaction
from tests.support.sql_statements import execute
from ticketflow_orch.jobs.batches import BadRow
from ticketflow_orch.ticketing.reminders import (
    Reminded,
    ReminderRules,
    oldest_due_reminder,
    reminders_are_due,
    send_reminders,
)

BEFORE = instant("2026-01-01T00:00")
START = instant("2026-06-02T18:00")
DAY = timedelta(hours=24)


def remind(engine: Engine, now: datetime, **changes: Any) -> Reminded:
    return send_reminders(engine, ReminderRules(now=now, kinds={"24h": DAY}, **changes))


def enable(engine: Engine) -> None:
    """The kind has been there since the beginning of the year."""
    remind(engine, BEFORE)


def add_ticket(engine: Engine, event: int, bought: str = "2026-05-01T10:00", **values: Any) -> int:
    return add_reservation(engine, event, status="CONFIRMED", confirmed_at=instant(bought), **values)


def add_evening(engine: Engine, **values: Any) -> int:
    defaults = {"starts_at": START, "ends_at": START + timedelta(hours=2)}
    return add_event(engine, add_organization(engine), **defaults | values)


def reminders(engine: Engine) -> list[tuple[Any, ...]]:
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT kind, CAST(event_date AS text), state FROM reminder ORDER BY id"))
        return [tuple(row) for row in rows]


@pytest.mark.every_server
def test_96_runs_over_one_day_remind_once(engine: Engine) -> None:
    enable(engine)
    add_ticket(engine, add_evening(engine))
    runs = [remind(engine, START - DAY + timedelta(minutes=15 * n)) for n in range(96)]
    assert [run.queued for run in runs] == [1, *[0] * 95]
    assert reminders(engine) == [("24h", "2026-06-02", "QUEUED")]
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM outbox_event")).scalar_one() == 1


@pytest.mark.parametrize("chunk_size", [1, 10])
def test_who_is_reminded_by_another_run_at_the_same_time_is_reminded_once_and_keeps_nobody_from_it(
    engine: Engine, chunk_size: int
) -> None:
    enable(engine)
    event = add_evening(engine)
    first, *_ = [add_ticket(engine, event) for _ in range(3)]
    with ThreadPoolExecutor(1) as threads:
        with engine.begin() as other:
            other.execute(
                text("""
                    INSERT INTO reminder (reservation_id, kind, event_date, state)
                    VALUES (:id, '24h', '2026-06-02', 'SKIPPED')
                """),
                {"id": first},
            )
            run = threads.submit(remind, engine, START - DAY, chunk_size=chunk_size)
            becomes(lambda: waiting_for_a_transaction(engine), unless=run.done)
        assert run.result(timeout=30) == Reminded(queued=2, skipped=0, missed=0, bad=())
    assert sorted(state for *_, state in reminders(engine)) == ["QUEUED", "QUEUED", "SKIPPED"]


def test_a_reminder_is_due_24_elapsed_hours_before_the_start_not_a_microsecond_earlier(engine: Engine) -> None:
    enable(engine)
    add_ticket(engine, add_evening(engine))
    assert remind(engine, START - DAY - timedelta(microseconds=1)).queued == 0
    assert remind(engine, START - DAY).queued == 1


def test_an_event_moved_to_another_date_reminds_once_more_and_by_an_hour_not(engine: Engine) -> None:
    enable(engine)
    event = add_evening(engine)
    add_ticket(engine, event)
    remind(engine, START - DAY)
    for hours in (1, 72):
        with engine.begin() as connection:
            connection.execute(
                text("UPDATE event SET starts_at = :starts_at, ends_at = :ends_at WHERE id = :id"),
                {"id": event, "starts_at": START + timedelta(hours=hours), "ends_at": START + timedelta(hours=99)},
            )
        remind(engine, START + timedelta(hours=hours) - DAY)
    assert reminders(engine) == [("24h", "2026-06-02", "QUEUED"), ("24h", "2026-06-05", "QUEUED")]


@pytest.mark.parametrize("status", ["DRAFT", "CANCELLED"])
def test_an_event_that_is_not_open_reminds_nobody(engine: Engine, status: str) -> None:
    enable(engine)
    event = add_evening(engine)
    add_ticket(engine, event)
    with engine.begin() as connection:
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        connection.execute(text("UPDATE event SET status = :status WHERE id = :id"), {"id": event, "status": status})
    assert remind(engine, START - DAY) == Reminded(0, 0, 0, ())


def test_a_window_that_was_missed_is_caught_up_until_the_start_and_shown_as_missed_after_it(engine: Engine) -> None:
    enable(engine)
    add_ticket(engine, add_evening(engine))
    assert remind(engine, START - timedelta(minutes=1)).queued == 1
    add_ticket(engine, add_evening(engine))
    assert remind(engine, START).missed == 1


def test_who_buys_late_is_skipped_and_who_has_just_bought_is_left_in_peace(engine: Engine) -> None:
    enable(engine)
    event = add_evening(engine)
    add_ticket(engine, event, bought="2026-06-01T17:00")
    add_ticket(engine, event, bought="2026-06-01T18:30")
    assert remind(engine, START - DAY) == Reminded(0, 0, 0, ())
    assert remind(engine, START - timedelta(hours=23)) == Reminded(1, 0, 0, ())
    assert remind(engine, START - timedelta(hours=10)) == Reminded(0, 1, 0, ())


@pytest.mark.parametrize(
    ("bought", "state"),
    [
        # Until 15:59 the quiet of two hours ends before the start at 18:00, and one hour before it is a time to remind.
        ("2026-06-02T15:59:59", "MISSED"),
        ("2026-06-02T16:00:00", "SKIPPED"),
        ("2026-06-02T16:30:00", "SKIPPED"),
        ("2026-06-02T17:30:00", "SKIPPED"),
    ],
)
def test_who_is_kept_quiet_until_the_start_is_skipped_and_not_missed(engine: Engine, bought: str, state: str) -> None:
    kinds = {"1h": timedelta(hours=1)}
    send_reminders(engine, ReminderRules(BEFORE, kinds))
    add_ticket(engine, add_evening(engine), bought=bought)
    send_reminders(engine, ReminderRules(START, kinds, quiet=timedelta(hours=2)))
    assert reminders(engine) == [("1h", "2026-06-02", state)]


def test_a_kind_newly_enabled_reminds_nobody_of_what_was_due_before(engine: Engine) -> None:
    add_ticket(engine, add_evening(engine))
    assert remind(engine, START - timedelta(hours=3)) == Reminded(0, 1, 0, ())


@pytest.mark.parametrize(
    ("timezone", "starts_at", "event_date"),
    [
        ("Pacific/Kiritimati", "2026-06-02T11:00", "2026-06-03"),
        ("Pacific/Pago_Pago", "2026-06-02T10:00", "2026-06-01"),
        ("Europe/Madrid", "2026-03-29T10:00", "2026-03-29"),
        ("Europe/Madrid", "2026-10-25T00:30", "2026-10-25"),
    ],
)
def test_the_key_is_the_events_own_date_and_24_hours_are_elapsed_ones(
    engine: Engine, timezone: str, starts_at: str, event_date: str
) -> None:
    enable(engine)
    start = instant(starts_at)
    add_ticket(
        engine,
        add_evening(engine, timezone=timezone, starts_at=start, ends_at=start + timedelta(hours=1)),
        bought="2026-01-02T00:00",
        created_at=instant("2026-01-02T00:00"),
    )
    assert remind(engine, start - DAY - timedelta(seconds=1)).queued == 0
    assert remind(engine, start - DAY).queued == 1
    assert reminders(engine) == [("24h", event_date, "QUEUED")]


UNKNOWN = "Time zone 'UTC+2' is unknown to tzdata; use an IANA name such as 'Europe/Madrid'."


@pytest.mark.parametrize("chunk_size", [1, 2, 5000])
def test_events_in_an_unknown_zone_are_left_out_and_everybody_else_is_reminded(engine: Engine, chunk_size: int) -> None:
    enable(engine)
    zones = {"one": "Europe/Madrid", "two": "UTC+2", "three": "UTC", "four": "UTC+2"}
    evenings = [add_evening(engine, external_ref=name, timezone=timezone) for name, timezone in zones.items()]
    for evening in evenings:
        add_ticket(engine, evening)
    left_out = tuple(BadRow(f"event {evenings[place]}", UNKNOWN, name) for place, name in ((1, "two"), (3, "four")))
    assert remind(engine, START - DAY, chunk_size=chunk_size) == Reminded(2, 0, 0, left_out)
    execute(engine, "UPDATE event SET timezone = 'Europe/Madrid' WHERE timezone = 'UTC+2'")
    assert remind(engine, START - DAY, chunk_size=chunk_size) == Reminded(2, 0, 0, ())


def test_an_event_in_an_unknown_zone_is_told_beside_a_row_that_the_database_refuses(engine: Engine) -> None:
    enable(engine)
    add_ticket(engine, add_evening(engine, external_ref="unknown", timezone="UTC+2"))
    for name in ("refused", "well"):
        add_ticket(engine, add_evening(engine, timezone="UTC"), public_ref=name)
    execute(engine, "ALTER TABLE outbox_event ADD CHECK (payload ->> 'ref' <> 'refused')")
    done = remind(engine, START - DAY)
    assert done.queued == 1
    assert [row.name for row in done.bad] == ["refused", "unknown"]


def test_an_event_in_an_unknown_zone_is_to_be_told_but_no_reminder_of_it_is_due(engine: Engine) -> None:
    enable(engine)
    add_ticket(engine, add_evening(engine, timezone="UTC+2"))
    rules = ReminderRules(now=START - timedelta(hours=1), kinds={"24h": DAY})
    with engine.connect() as connection:
        assert oldest_due_reminder(connection, rules) is None
        assert reminders_are_due(connection, rules)
    add_ticket(engine, add_evening(engine))
    with engine.connect() as connection:
        assert oldest_due_reminder(connection, rules) == START - DAY
