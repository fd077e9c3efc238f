"""What the database tells about the back office, and that telling it stays cheap."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, event, text

from tests.support.payable import owing, request, requested_payout
from tests.support.rows import add_event, add_movement, add_organization, add_reservation, instant
from tests.support.settled import settle
from tests.support.sql_statements import deliver, execute, take
from ticketflow_orch.clock import now
from ticketflow_orch.jobs.firings import Firing
from ticketflow_orch.jobs.run_once import run_once
from ticketflow_orch.monitoring.durations import Traffic
from ticketflow_orch.monitoring.snapshot import Counted, Situation, read_situation
from ticketflow_orch.months import Month
from ticketflow_orch.settings import Settings
from ticketflow_orch.ticketing.events import close_events
from ticketflow_orch.ticketing.lifecycle import LifecycleRules
from ticketflow_orch.ticketing.reservations import expire_reservations

SETTINGS = Settings(first_month="2026-01")


def situation(engine: Engine, **settings: Any) -> Situation:
    return read_situation(engine, SETTINGS.model_copy(update=settings))


def window(engine: Engine, job: str, ago: timedelta, result: dict[str, Any]) -> None:
    """A completed window of `job` that was started twice."""
    tick = now() - ago
    for run in ("first", "second"):
        run_once(engine, Firing(job, tick, run), lambda: result)


@pytest.mark.every_server
def test_nothing_is_known_of_a_fresh_database_but_its_clock(engine: Engine) -> None:
    fresh = situation(engine)
    assert (fresh.firings, fresh.effects, fresh.undelivered, fresh.delivered) == ((), (), (), ())
    assert (fresh.last_success, fresh.due_since, fresh.outbox.due_since) == ({}, {}, None)
    assert (fresh.unsettled, fresh.parked, fresh.stale, fresh.stuck, fresh.without_ticket) == ((), 0, (), 0, 0)
    assert abs(fresh.clock_difference) < 1
    assert abs((fresh.database_now - fresh.business_now).total_seconds()) < 5


@pytest.mark.every_server
def test_firings_and_effects_of_the_last_day_are_counted(engine: Engine) -> None:
    for hours in (1, 2):
        window(engine, "expire_reservations", timedelta(hours=hours), {"reservations": 3, "left": 9, "bad": []})
    window(engine, "close_events", timedelta(hours=3), {"events": 1})
    seen = situation(engine)
    assert [(*count.labels[::2], count.count) for count in seen.firings] == [
        ("close_events", "ACCEPTED", 1),
        ("close_events", "DUPLICATE", 1),
        ("expire_reservations", "ACCEPTED", 2),
        ("expire_reservations", "DUPLICATE", 2),
    ]
    assert seen.effects == (
        Counted(("close_events", "events"), 1),
        Counted(("expire_reservations", "reservations"), 6),
    )


def test_what_happened_before_the_last_day_is_not_counted(engine: Engine) -> None:
    window(engine, "close_events", timedelta(days=2), {"events": 1})
    execute(engine, "UPDATE job_firing SET fired_at = now() - interval '25 hours'")
    seen = situation(engine)
    assert (seen.firings, seen.effects) == ((), ())
    assert set(seen.last_success) == {"close_events"}


def test_the_last_success_is_that_of_the_last_window_that_completed(engine: Engine) -> None:
    window(engine, "close_events", timedelta(hours=3), {})
    with pytest.raises(ZeroDivisionError):
        run_once(engine, Firing("close_events", now(), "run"), lambda: {"never": 1 // 0})
    add_movement(engine, add_organization(engine), 100, "2026-03-10T10:00")
    settle(engine)
    seen = situation(engine)
    assert set(seen.last_success) == {"close_events", "monthly_settlement"}
    assert all(abs(seen.database_now - at) < timedelta(minutes=1) for at in seen.last_success.values())


def test_the_outbox_is_counted_by_type_and_state_and_aged_by_what_has_waited_longest(engine: Engine) -> None:
    organization = add_organization(engine)
    for _ in range(2):
        add_reservation(engine, add_event(engine, organization))
    expire_reservations(engine, LifecycleRules(instant("2026-05-02T00:00"), "run"))
    close_events(engine, LifecycleRules(instant("2026-06-02T04:30"), "run"))
    execute(engine, "UPDATE outbox_event SET available_at = '2026-05-02Z' WHERE event_type = 'EventClosed'")
    expired = "id = (SELECT {which}(id) FROM outbox_event WHERE event_type = 'ReservationExpired')"
    deliver(engine, "now()", expired.format(which="min"))
    take(engine, expired.format(which="max"))
    seen = situation(engine)
    assert seen.undelivered == (
        Counted(("EventClosed", "PENDING"), 2),
        Counted(("ReservationExpired", "INFLIGHT"), 1),
    )
    assert seen.delivered == (Counted(("ReservationExpired",), 1),)
    assert seen.outbox.due_since == instant("2026-05-02T00:00")


def test_due_work_is_aged_from_when_its_rules_make_it_due(engine: Engine) -> None:
    evening = add_event(engine, add_organization(engine), starts_at=instant("2026-06-01T18:00"))
    add_reservation(engine, evening, expires_at=instant("2026-06-01T18:30"))
    seen = situation(
        engine,
        fixed_clock=instant("2026-06-02T00:00"),
        expiry_delay=timedelta(hours=1),
        closing_grace=timedelta(hours=2),
    )
    assert seen.business_now == instant("2026-06-02T00:00")
    assert seen.due_since == {
        "close_events": instant("2026-06-01T22:00"),
        "expire_reservations": instant("2026-06-01T19:30"),
    }


def test_an_event_in_an_unknown_zone_hides_nothing_else_that_is_due(engine: Engine) -> None:
    organization = add_organization(engine)
    for timezone, starts_at in (("UTC+2", "2026-06-02T18:00"), ("Europe/Madrid", "2026-06-02T20:00")):
        start = instant(starts_at)
        evening = add_event(
            engine, organization, timezone=timezone, starts_at=start, ends_at=start + timedelta(hours=2)
        )
        add_reservation(engine, evening, status="CONFIRMED", confirmed_at=instant("2026-05-01T10:00"))
    seen = situation(engine, fixed_clock=instant("2026-06-02T12:00"))
    assert seen.due_since == {"send_reminders": instant("2026-06-01T20:00")}


def test_money_that_waits_is_due_when_its_grace_is_over_and_no_work_once_it_was_reported(engine: Engine) -> None:
    organization = add_organization(engine)
    evening = add_event(engine, organization, ends_at=instant("2027-01-01T00:00"))
    held = add_reservation(engine, evening, expires_at=instant("2026-06-01T18:00"))
    add_movement(engine, organization, 100, "2026-06-01T17:59", reservation_id=held)

    def due_since(at: str) -> object:
        return situation(engine, fixed_clock=instant(at)).due_since.get("expire_reservations")

    assert due_since("2026-06-01T18:29") is None
    assert due_since("2026-06-01T18:31") == instant("2026-06-01T18:30")
    expire_reservations(engine, LifecycleRules(instant("2026-06-01T18:31"), "run"))
    assert due_since("2026-08-01T00:00") is None
    assert situation(engine).stuck == 1


def test_what_waits_for_a_person_is_counted(engine: Engine) -> None:
    organization = add_organization(engine)
    evening = add_event(engine, organization, ends_at=instant("2027-01-01T00:00"))
    add_reservation(engine, evening, payment_started_at=instant("2026-05-01T10:14"))
    held = add_reservation(engine, evening)
    expire_reservations(engine, LifecycleRules(instant("2026-06-02T00:00"), "run"))
    add_movement(engine, organization, 100, "2026-06-02T05:00", reservation_id=held)
    execute(
        engine,
        "INSERT INTO parked_organization (organization_id, month, reason) VALUES (:id, '2026-03-01', 'by hand')",
        id=organization,
    )
    execute(
        engine,
        """
        INSERT INTO job_execution (job, idempotency_key, state, owner, lease_until)
        VALUES ('any', 'stale', 'PROCESSING', 'nobody', now() - interval '1 second'),
            ('any', 'held', 'PROCESSING', 'somebody', now() + interval '1 minute')
        """,
    )
    seen = situation(engine)
    assert (seen.stuck, seen.without_ticket, seen.parked) == (1, 1, 1)
    assert [claim.key for claim in seen.stale] == ["stale"]


def test_payouts_are_counted_until_they_are_decided(engine: Engine) -> None:
    requested_payout(engine)
    owing(engine, month=Month(2026, 4))
    request(engine, Month(2026, 4))
    execute(engine, "UPDATE payout SET state = 'IN_DOUBT' WHERE month = '2026-03-01'")
    assert situation(engine).payouts == (Counted(("IN_DOUBT",), 1), Counted(("REQUESTED",), 1))
    execute(engine, "UPDATE payout SET state = 'CONFIRMED', answered_at = now() WHERE month = '2026-03-01'")
    assert situation(engine).payouts == (Counted(("REQUESTED",), 1),)


def test_months_that_are_over_and_not_settled_are_named(engine: Engine) -> None:
    organization = add_organization(engine)
    add_movement(engine, organization, 100, "2026-03-10T10:00")
    settle(engine)
    assert situation(engine, fixed_clock=instant("2026-06-01T12:00")).unsettled == (Month(2026, 4), Month(2026, 5))


def test_closed_months_that_lack_statements_are_named_until_they_have_them(engine: Engine) -> None:
    owing(engine, month=Month(2026, 3))
    assert list(situation(engine).unstated) == [Month(2026, 3)]
    execute(engine, "UPDATE settlement_period SET stated_at = now()")
    assert situation(engine).unstated == {}


def test_organizations_in_unknown_zones_are_named_and_hide_nothing_else(engine: Engine) -> None:
    add_organization(engine, external_ref="hall-7", timezone="Mars/Olympus")
    add_organization(engine, external_ref="hall-8")
    requested_payout(engine)
    seen = situation(engine)
    assert seen.unknown_zones == {"hall-7": "Mars/Olympus"}
    assert seen.payouts == (Counted(("REQUESTED",), 1),)


def test_a_row_that_python_cannot_read_hides_the_figures_about_it_alone(engine: Engine) -> None:
    event = add_event(engine, add_organization(engine), ends_at=now() + timedelta(days=9))
    add_reservation(engine, event, expires_at=now() - timedelta(minutes=5))
    execute(engine, "ALTER TABLE reservation DROP CONSTRAINT reservation_instants_check")
    execute(engine, "UPDATE reservation SET expires_at = '-infinity'")
    requested_payout(engine)
    seen = situation(engine)
    assert set(seen.unanswered) == {"expire_reservations"}
    assert "timestamp too small" in seen.unanswered["expire_reservations"]
    assert seen.payouts == (Counted(("REQUESTED",), 1),)


def test_no_figure_scans_a_table_that_grows(engine: Engine) -> None:
    organization = add_organization(engine)
    add_event(engine, organization, ends_at=now() + timedelta(days=90), starts_at=now() + timedelta(days=80))
    for statement in (
        """
        INSERT INTO event (external_ref, organization_id, title, status, starts_at, ends_at, timezone, closed_at)
        SELECT 'e' || n, :organization, 'past', 'CLOSED', now() - interval '99 days', now() - interval '98 days',
            'UTC', now()
        FROM generate_series(1, 5000) AS n
        """,
        """
        INSERT INTO reservation (public_ref, event_id, buyer_email, quantity, status, created_at, expires_at,
            expired_at)
        SELECT 'r' || n, (SELECT id FROM event WHERE status = 'OPEN'), 'a@example.com', 1, 'EXPIRED', now(),
            now(), now()
        FROM generate_series(1, 5000) AS n
        """,
        """
        INSERT INTO money_movement (external_ref, organization_id, kind, currency, amount, commission_rate_bps,
            commission_tax_bps, occurred_at)
        SELECT 'm' || n, :organization, 'CAPTURE', 'EUR', 1, 0, 0, '2026-01-10Z' FROM generate_series(1, 5000) AS n
        """,
        """
        INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload, dedupe_key, occurred_at, state,
            ended_at, available_at)
        SELECT 'reservation', n, 'Any', '{}', n, now(), 'DELIVERED', now() - interval '9 days', NULL
        FROM generate_series(1, 5000) AS n
        """,
        """
        INSERT INTO job_firing (job, scheduled_for, fired_at, host, pid, run_id, outcome)
        SELECT 'any', now(), now() - interval '9 days', 'here', 1, 'run', 'ACCEPTED' FROM generate_series(1, 5000)
        """,
        """
        INSERT INTO job_execution (job, idempotency_key, state, owner, result, finished_at)
        SELECT 'any', to_char(now() - n * interval '1 minute', 'YYYY-MM-DD"T"HH24:MI:00+00:00'), 'COMPLETED',
            'nobody', '{"rows": 1}', now() - n * interval '1 minute'
        FROM generate_series(2000, 9000) AS n
        """,
    ):
        execute(engine, statement, **({"organization": organization} if ":organization" in statement else {}))
    execute(engine, "ANALYZE")
    sent: list[tuple[str, Any]] = []

    @event.listens_for(engine, "before_cursor_execute")
    def remember(_connection: object, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
        sent.append((statement, parameters))

    situation(engine)
    questions = [question for question in sent if question[0].lstrip().startswith(("SELECT", "WITH"))]
    assert len(questions) > 12
    growing = ("event", "reservation", "money_movement", "outbox_event", "job_firing", "job_execution")
    with engine.connect() as connection:
        for statement, parameters in questions:
            plan = "\n".join(connection.exec_driver_sql(f"EXPLAIN {statement}", parameters).scalars())
            scanned = [table for table in growing if f"Seq Scan on {table} " in plan]
            assert not scanned, plan


def test_a_question_that_has_to_wait_hides_only_what_it_asks(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ticketflow_orch.monitoring.snapshot._LONGEST_QUESTION", 0.1)
    add_organization(engine, external_ref="hall-7", timezone="UTC+2")
    with engine.connect() as holding:
        holding.execute(text("LOCK TABLE job_execution"))
        seen = situation(engine)
    assert sorted(seen.untold) == ["effects", "last_success", "run_times", "stale"]
    assert set(seen.untold.values()) == {"canceling statement due to statement timeout"}
    assert seen.unknown_zones == {"hall-7": "UTC+2"}


def test_where_the_time_for_all_questions_is_over_the_rest_is_not_asked(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ticketflow_orch.monitoring.snapshot._LONGEST", 0.0)
    seen = situation(engine)
    assert "outbox" in seen.untold
    assert set(seen.untold.values()) == {"the 0 s for all questions were over"}


def test_windows_are_measured_by_how_long_they_took_and_destinations_by_what_they_saw(engine: Engine) -> None:
    window(engine, "close_events", timedelta(hours=1), {})
    execute(engine, "UPDATE job_execution SET started_at = finished_at - interval '2 seconds'")
    add_delivered(engine, "mail", attempts=3, took="3 minutes", ago="1 minute")
    add_delivered(engine, "mail", attempts=1, took="0 seconds", ago="2 hours")
    seen = situation(engine)
    [took] = seen.run_times
    assert (took.label, took.seconds) == ("close_events", pytest.approx(2))
    assert dict(took.buckets) | {"1.0": 0, "5.0": 1, "+Inf": 1} == dict(took.buckets)
    [waited] = seen.latencies
    assert (waited.label, waited.seconds) == ("mail", pytest.approx(180))
    assert dict(waited.buckets) | {"0.1": 1, "60.0": 1, "300.0": 2, "+Inf": 2} == dict(waited.buckets)
    assert seen.traffic == (Traffic("mail", 2, 4, 1 / 300),)


def add_delivered(engine: Engine, destination: str, *, attempts: int, took: str, ago: str) -> None:
    execute(
        engine,
        """
        INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload, dedupe_key, occurred_at, state,
            available_at, ended_at, destination, attempts)
        SELECT 'event', 'one', 'EventClosed', '{}', CAST(:took AS text), ended_at - CAST(:took AS interval),
            'DELIVERED', NULL, ended_at, :destination, :attempts
        FROM (SELECT now() - CAST(:ago AS interval) AS ended_at) AS moment
        """,
        destination=destination, attempts=attempts, took=took, ago=ago,
    )  # fmt: skip
