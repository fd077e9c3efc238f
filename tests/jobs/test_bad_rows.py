"""A row that a job cannot do: found whatever the error, alerted once a break, never quoted, in nobody's way."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import Engine, event
from sqlalchemy.exc import DBAPIError

from tests.outbox.relay.world import delivery, run
from tests.support.metrics import scrape
from tests.support.payable import rows
from tests.support.poison import refuse
from tests.support.rows import add_event, add_movement, add_organization, add_reservation, instant
from tests.support.sql_statements import execute, refusal
from ticketflow_orch.db.engine import transaction
from ticketflow_orch.jobs.batches import NAMED, ManyBadRowsError
from ticketflow_orch.monitoring.health import problems
from ticketflow_orch.monitoring.metrics import TicketFlowCollector
from ticketflow_orch.monitoring.passed_alerts import resolve_passed
from ticketflow_orch.monitoring.snapshot import read_situation
from ticketflow_orch.settings import Settings
from ticketflow_orch.ticketing.event_changes import tell_changes
from ticketflow_orch.ticketing.events import close_events, oldest_due_event
from ticketflow_orch.ticketing.lifecycle import LifecycleRules
from ticketflow_orch.ticketing.reminders import (
    Reminded,
    ReminderRules,
    oldest_due_reminder,
    reminders_are_due,
    send_reminders,
)
from ticketflow_orch.ticketing.reservations import (
    Expired,
    expire_reservations,
    oldest_due_reservation,
    reservations_are_due,
)

NOW = instant("2026-06-02T04:30")
MINUTE = timedelta(minutes=1)
SEAT_MAP = "the seat map is locked"
SETTINGS = Settings(fixed_clock=NOW + 9 * MINUTE)
START = instant("2026-06-02T18:00")
KINDS = {"24h": timedelta(hours=24)}
STATES = (
    "P0001", "P0002", "54001", "54000", "55000", "55006", "22012", "23514", "42501", "0A000", "XX000", "TF001",
)  # fmt: skip


def expire(engine: Engine, now: datetime = NOW, **changes: Any) -> Expired:
    return expire_reservations(engine, LifecycleRules(now=now, run_id="run", **changes))


def hold(engine: Engine, *names: str, **values: Any) -> list[int]:
    """Reservations of these names that are due, of an event that is not over."""
    evening = add_event(engine, add_organization(engine), ends_at=instant("2026-07-01T00:00"))
    return [add_reservation(engine, evening, public_ref=name, **values) for name in names]


def remind(engine: Engine, now: datetime, **changes: Any) -> Reminded:
    return send_reminders(engine, ReminderRules(now, KINDS, **changes))


def sell(engine: Engine, *names: str, starts_at: datetime = START) -> None:
    """Tickets of these names for one evening, which reminders are to be sent of."""
    remind(engine, instant("2026-01-01T00:00"))
    evening = add_event(engine, add_organization(engine), starts_at=starts_at, ends_at=starts_at + timedelta(hours=2))
    for name in names:
        add_reservation(engine, evening, public_ref=name, status="CONFIRMED", confirmed_at=instant("2026-05-01T10:00"))


def statuses(engine: Engine) -> dict[str, str]:
    return dict(rows(engine, "SELECT public_ref, status FROM reservation ORDER BY id"))


def alerts(engine: Engine) -> list[str]:
    return [
        key.removeprefix("RowLeftOut ")
        for (key,) in rows(engine, "SELECT aggregate_id FROM outbox_event WHERE event_type = 'RowLeftOut' ORDER BY id")
    ]


# --- Whatever the error


@pytest.mark.parametrize("at_commit", [False, True])
def test_a_row_that_somebody_s_trigger_refuses_is_left_out_whatever_its_error_and_all_others_are_done(
    engine: Engine, at_commit: bool
) -> None:
    for state in STATES:
        held = hold(engine, "one", "bad", "two")
        refuse(engine, "reservation", "NEW.public_ref = 'bad'", SEAT_MAP, state, at_commit=at_commit)
        done = expire(engine)
        assert (state, done.reservations, done.left) == (state, 2, 1)
        assert [(row.id, row.name, row.error) for row in done.bad] == [(held[1], "bad", SEAT_MAP)]
        assert statuses(engine) == {"one": "EXPIRED", "bad": "ACTIVE", "two": "EXPIRED"}
        execute(engine, "DELETE FROM reservation")
        execute(engine, "DELETE FROM outbox_event")


def test_an_error_of_the_connection_or_the_server_ends_the_run_and_blames_no_row(engine: Engine) -> None:
    hold(engine, "one", "bad")
    for state in ("08006", "25006", "40001", "53100", "57014", "58030"):
        refuse(engine, "reservation", "NEW.public_ref = 'bad'", "something else", state)
        with pytest.raises(DBAPIError, match="something else"):
            expire(engine)
    assert (alerts(engine), rows(engine, "SELECT * FROM bad_row")) == ([], [])


def test_a_row_that_waits_for_somebody_s_lock_is_tried_again_and_alerted_if_that_lasts(engine: Engine) -> None:
    hold(engine, "one", "bad", "two")
    refuse(engine, "reservation", "NEW.public_ref = 'bad'", "could not obtain lock on seat", "55P03")
    assert expire(engine).reservations == 2
    assert alerts(engine) == []
    expire(engine, NOW + MINUTE)
    assert alerts(engine) == ["expire_reservations bad"]


@pytest.mark.parametrize("chunk_size", [1, 3, 5000])
def test_a_reservation_that_cannot_be_expired_keeps_no_event_open(engine: Engine, chunk_size: int) -> None:
    organization = add_organization(engine)
    for name in ("one", "bad", "two"):
        add_reservation(engine, add_event(engine, organization), public_ref=name)
    refuse(engine, "reservation", "NEW.public_ref = 'bad'", SEAT_MAP)
    rules = LifecycleRules(now=NOW, run_id="run", chunk_size=chunk_size)
    closed = close_events(engine, rules)
    assert (closed.events, closed.reservations_expired, closed.left, closed.bad) == (3, 2, 0, ())
    assert [row.name for row in expire_reservations(engine, rules).bad] == ["bad"]


def test_a_ticket_that_cannot_be_reminded_of_keeps_nobody_of_its_event_from_being_reminded(engine: Engine) -> None:
    sell(engine, "one", "bad", "two")
    refuse(engine, "outbox_event", "NEW.payload ->> 'ref' = 'bad'", SEAT_MAP, operation="INSERT")
    done = remind(engine, START - timedelta(hours=24))
    assert (done.queued, [row.name for row in done.bad]) == (2, ["bad"])
    assert alerts(engine) == ["send_reminders bad"]


def test_a_change_of_an_event_of_which_nobody_can_be_told_is_left_out_until_it_can_be(engine: Engine) -> None:
    eve = START - timedelta(hours=24)
    sell(engine, "bad")
    execute(engine, "UPDATE event SET external_ref = 'evening', status = 'CANCELLED'")
    refuse(engine, "outbox_event", "NEW.event_type = 'EventCancelled'", SEAT_MAP, operation="INSERT")
    for minute in range(2):
        told = tell_changes(engine, ReminderRules(eve + minute * MINUTE, KINDS), cancellations=True)
        assert (told.cancelled, [(row.name, row.error) for row in told.bad]) == (0, [("evening", SEAT_MAP)])
        remind(engine, eve + minute * MINUTE)
    assert alerts(engine) == ["send_reminders evening"]
    assert rows(engine, "SELECT job, name FROM bad_row") == [("send_reminders", "evening")]
    execute(engine, "DROP TRIGGER refuse ON outbox_event")
    assert tell_changes(engine, ReminderRules(eve + 2 * MINUTE, KINDS), cancellations=True).cancelled == 1
    assert rows(engine, "SELECT * FROM bad_row") == []


# --- At most so many


def test_of_many_bad_rows_a_hundred_are_found_in_a_run_and_all_good_ones_are_done_in_the_end(engine: Engine) -> None:
    evening = add_event(engine, add_organization(engine), ends_at=instant("2026-07-01T00:00"))
    execute(
        engine,
        """
        INSERT INTO reservation (public_ref, event_id, buyer_email, quantity, status, created_at, expires_at)
        SELECT CASE WHEN n % 3 = 0 THEN 'bad-' ELSE 'good-' END || n, CAST(:event AS bigint), 'a@b.example', 1,
            'ACTIVE', '2026-05-01Z', '2026-05-01Z'
        FROM generate_series(1, 450) AS n
        """,
        event=evening,
    )
    refuse(engine, "reservation", "NEW.public_ref LIKE 'bad-%'", SEAT_MAP)
    with pytest.raises(ManyBadRowsError, match=f"More than 100 rows fail, and .* the first says: {SEAT_MAP}"):
        expire(engine)
    assert len(rows(engine, "SELECT FROM bad_row")) == NAMED
    done = expire(engine, NOW + MINUTE)
    assert len(rows(engine, "SELECT FROM bad_row")) == 150
    assert rows(engine, "SELECT count(*) FROM reservation WHERE status = 'EXPIRED'") == [(300,)]
    assert (len(done.bad), len(alerts(engine))) == (150, 1)


def test_what_no_row_gets_past_ends_after_a_hundred_of_them(engine: Engine) -> None:
    hold(engine, *(f"R-{number}" for number in range(130)))
    refuse(engine, "reservation", "true", SEAT_MAP)
    with pytest.raises(ManyBadRowsError):
        expire(engine, chunk_size=10)
    assert len(rows(engine, "SELECT FROM bad_row")) == NAMED


# --- Alerted once a break, and never with what stands in the row


def test_a_break_is_alerted_once_and_the_next_one_again(engine: Engine) -> None:
    [bad] = hold(engine, "bad")
    refuse(engine, "reservation", "NEW.status = 'EXPIRED'", SEAT_MAP)
    for minute in range(3):
        expire(engine, NOW + minute * MINUTE)
    assert alerts(engine) == ["expire_reservations bad"]
    execute(engine, "UPDATE reservation SET expires_at = '2026-06-02 05:00Z'")
    expire(engine, NOW + 3 * MINUTE)
    assert rows(engine, "SELECT * FROM bad_row") == []
    with transaction(engine) as connection:
        assert [one.kind for one in resolve_passed(connection, NOW)] == ["RowLeftOut"]
    for minute in range(40, 43):
        expire(engine, NOW + minute * MINUTE)
    assert alerts(engine) == ["expire_reservations bad", "expire_reservations bad #2"]
    execute(engine, "DROP TRIGGER refuse ON reservation")
    assert expire(engine, NOW + 43 * MINUTE).reservations == 1
    assert (rows(engine, "SELECT * FROM bad_row"), statuses(engine)) == ([], {"bad": "EXPIRED"})
    assert bad > 0


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("ALTER TABLE reservation ADD CONSTRAINT free CHECK (status <> 'EXPIRED') NOT VALID", 'constraint "free"'),
        ("", "who has R-bad is …@…, who objects"),
    ],
)
def test_what_is_alerted_names_the_row_and_the_reason_and_nothing_that_stands_in_it(
    engine: Engine, rule: str, said: str
) -> None:
    hold(engine, "bad", buyer_email="ada@lovelace.example")
    if rule:
        execute(engine, rule)
    else:
        refuse(engine, "reservation", "true", "who has R-bad is ada@lovelace.example, who objects")
    done = expire(engine)
    alerted = rows(engine, "SELECT CAST(payload AS text) FROM outbox_event UNION ALL SELECT error FROM bad_row")
    lines = list(problems(read_situation(engine, SETTINGS), "UTC", timedelta(days=99)))
    for words in (str(done.bad), *(one for (one,) in alerted), *lines):
        assert "lovelace" not in words
        assert "Failing row" not in words
    assert said in done.bad[0].error


def test_a_value_that_no_type_takes_is_not_repeated(engine: Engine) -> None:
    hold(engine, "bad", buyer_email="Ada Lovelace")
    execute(
        engine,
        """
        CREATE FUNCTION numbered() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            PERFORM CAST(NEW.buyer_email AS integer); RETURN NEW; END $$;
        CREATE TRIGGER numbered BEFORE UPDATE ON reservation FOR EACH ROW EXECUTE FUNCTION numbered();
        """,
    )
    assert [row.error for row in expire(engine).bad] == ["invalid input syntax for type integer"]


# --- In nobody's way


def test_what_is_left_out_is_not_due_but_tried_again_now_and_then(engine: Engine) -> None:
    hold(engine, "bad")
    refuse(engine, "reservation", "NEW.public_ref = 'bad'", SEAT_MAP)

    def due(minutes: int) -> tuple[bool, datetime | None]:
        rules = LifecycleRules(now=NOW + minutes * MINUTE, run_id="run")
        with engine.connect() as connection:
            return reservations_are_due(connection, rules), oldest_due_reservation(connection, rules)

    assert due(0) == (True, instant("2026-05-01T10:15"))
    expire(engine)
    assert [due(minutes) for minutes in (0, 14, 15)] == [(False, None), (False, None), (True, None)]
    hold(engine, "good", expires_at=NOW)
    assert due(5) == (True, NOW)


def test_events_and_tickets_that_are_left_out_hide_no_others_either(engine: Engine) -> None:
    bad = add_event(engine, add_organization(engine), external_ref="bad", ends_at=NOW - MINUTE)
    refuse(engine, "event", "NEW.external_ref = 'bad'", SEAT_MAP)
    rules = LifecycleRules(now=NOW, run_id="run")
    assert [row.id for row in close_events(engine, rules).bad] == [bad]
    sell(engine, "R-bad", "R-good")
    execute(engine, "UPDATE reservation SET confirmed_at = '2026-06-02 03:00Z' WHERE public_ref = 'R-good'")
    execute(engine, "ALTER TABLE reminder ADD CHECK (state <> 'QUEUED') NOT VALID")
    now = instant("2026-06-02T04:40")
    assert [row.name for row in remind(engine, now).bad] == ["R-bad"]
    reminding = ReminderRules(now, KINDS)
    with engine.connect() as connection:
        assert oldest_due_event(connection, rules) is None
        assert oldest_due_reminder(connection, reminding) is None
        assert not reminders_are_due(connection, reminding)
        later = ReminderRules(now + 20 * MINUTE, KINDS)
        assert oldest_due_reminder(connection, later) == instant("2026-06-02T05:00")
        assert reminders_are_due(connection, later)


def test_health_names_what_is_left_out_and_metrics_count_it_until_it_is_done(engine: Engine) -> None:
    hold(engine, "bad")
    refuse(engine, "reservation", "NEW.public_ref = 'bad'", SEAT_MAP)
    expire(engine)
    registry = CollectorRegistry()
    registry.register(TicketFlowCollector(engine, SETTINGS))
    [line] = problems(read_situation(engine, SETTINGS), "UTC", timedelta(days=99))
    assert line == (
        f"expire_reservations: bad is left out, since 2026-06-02T04:30:00+00:00: {SEAT_MAP}; correct what refuses it, "
        "and a later run takes it in."
    )
    assert scrape(registry)["job_rows_left_out", "expire_reservations"] == 1
    execute(engine, "DROP TRIGGER refuse ON reservation")
    expire(engine, NOW + MINUTE)
    assert list(problems(read_situation(engine, SETTINGS), "UTC", timedelta(days=99))) == []


def test_a_capture_without_a_ticket_is_delivered_though_what_was_sent_before_it_never_arrived(engine: Engine) -> None:
    organization = add_organization(engine)
    held = add_reservation(engine, add_event(engine, organization), public_ref="held")
    expire(engine)
    execute(engine, "UPDATE outbox_event SET state = 'DEAD', available_at = NULL")
    add_movement(engine, organization, 100, "2026-06-02T05:00", reservation_id=held)
    run(engine, delivery())
    ends = rows(engine, "SELECT event_type, state FROM outbox_event ORDER BY id")
    assert ends == [("ReservationExpired", "DEAD"), ("PaymentAfterExpiry", "DELIVERED")]


# --- Chunks of reminders


def test_reminders_of_one_large_event_are_committed_chunk_by_chunk(engine: Engine) -> None:
    sell(engine, *(f"R-{number:02}" for number in range(25)))
    refuse(
        engine,
        "reminder",
        "NEW.reservation_id = (SELECT id FROM last)",
        "the server stops",
        "57014",
        operation="INSERT",
    )
    execute(engine, "CREATE VIEW last AS SELECT max(id) AS id FROM reservation")
    with pytest.raises(DBAPIError, match="the server stops"):
        remind(engine, START - timedelta(hours=24), chunk_size=10)
    assert rows(engine, "SELECT count(*) FROM reminder") == [(20,)]
    execute(engine, "DROP TRIGGER refuse ON reminder")
    assert remind(engine, START - timedelta(hours=24), chunk_size=10).queued == 5
    assert rows(engine, "SELECT count(DISTINCT reservation_id) FROM reminder") == [(25,)]


def test_no_chunk_of_reminders_reads_again_what_the_ones_before_have_read(engine: Engine) -> None:
    sell(engine, *(f"R-{number:02}" for number in range(12)))
    sell(engine, *(f"S-{number:02}" for number in range(12)), starts_at=START + MINUTE)
    sizes = []

    def count(*arguments: Any) -> None:
        statement, parameters = arguments[2:4]
        if "INSERT INTO reminder" in statement and "ids" in parameters:
            sizes.append(parameters["ids"].count(",") + 1)

    event.listen(engine, "before_cursor_execute", count)
    assert remind(engine, START - timedelta(hours=20), chunk_size=5).queued == 24
    assert sizes == [5, 5, 5, 5, 4]


# --- Values that no calendar has


INSTANTS = [
    *(("event", name) for name in ("starts_at", "ends_at")),
    *(
        ("reservation", name)
        for name in ("created_at", "expires_at", "payment_started_at", "confirmed_at", "stuck_reported_at",
                     "cancelled_at")
    ),
    *(("organization", name) for name in ("joined_on", "left_on")),
]  # fmt: skip


def test_the_application_writes_no_instant_that_no_calendar_has(engine: Engine) -> None:
    hold(engine, "held")
    check = "(instants|days|ends_at|left_on)_check|event_check|organization_check"
    for table, column in INSTANTS:
        for value in ("-infinity", "infinity", "0044-03-15 BC", "20000-01-01"):
            assert re.search(check, refusal(engine, f"UPDATE {table} SET {column} = '{value}'"))


def test_unknown_zones_of_organizations_and_events_leave_all_metrics_where_they_are(engine: Engine) -> None:
    olympus = add_organization(engine, timezone="Mars/Olympus")
    add_movement(engine, olympus, 100, "2026-04-10T10:00")
    starts_at = SETTINGS.fixed_clock or NOW
    evening = add_event(
        engine, olympus, timezone="UTC+2", starts_at=starts_at + MINUTE, ends_at=starts_at + timedelta(hours=2)
    )
    add_reservation(engine, evening, status="CONFIRMED", confirmed_at=instant("2026-05-01T10:00"))
    registry = CollectorRegistry()
    registry.register(TicketFlowCollector(engine, SETTINGS))
    seen = scrape(registry)
    assert seen["figures_missing",] == 0
    assert seen["job_oldest_due_seconds", "send_reminders"] == 0
    assert seen["months_unsettled",] > 0
