"""What passes by itself costs seconds: it is tried again, from what is there; what does not is reported at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, OperationalError

from tests.support.books import FIRST, JANUARY
from tests.support.cuts import commits_unanswered, cut_at_random, fail, failures, raising
from tests.support.rows import add_event, add_movement, add_organization, add_reservation, instant
from tests.support.sql_statements import execute
from ticketflow_orch.closing import close_month
from ticketflow_orch.db import retrying
from ticketflow_orch.db.engine import connect_engine, transaction
from ticketflow_orch.db.retrying import is_transient, retried
from ticketflow_orch.jobs.claims import Claim, Done, OvertakenError, claim, finish, release
from ticketflow_orch.jobs.firings import Firing
from ticketflow_orch.jobs.run_once import run_once, write_down
from ticketflow_orch.payouts import PayoutRules, request_payouts
from ticketflow_orch.settlement import settle_month
from ticketflow_orch.ticketing.events import close_events
from ticketflow_orch.ticketing.lifecycle import LifecycleRules

NOW = instant("2026-06-02T02:30")
PASSING = ["08006", "25P03", "40001", "40P01", "53100", "53300", "55P03", "57014", "57P01", "57P03", "58030"]
LASTING = ["22012", "23505", "25006", "42501", "42P01", "P0001", "54000", "XX000"]


@pytest.fixture(autouse=True)
def short_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits longer than a test has to."""
    monkeypatch.setattr(retrying, "_FIRST_REST", 0.01)
    monkeypatch.setattr(retrying, "_LONGEST_REST", 0.05)


@pytest.fixture
def patient(url: URL) -> Iterator[Engine]:
    """An engine whose work is retried for ten seconds."""
    engine = connect_engine(url, "pytest patient", connections=8, patience=10)
    yield engine
    engine.dispose()


class Faults:
    """A step that meets the errors of `states`, one an attempt, and then passes."""

    def __init__(self, engine: Engine, *states: str) -> None:
        self._engine = engine
        self._states = list(states)
        self.attempts = 0

    def __call__(self) -> str:
        self.attempts += 1
        with transaction(self._engine) as connection:
            if self._states:
                connection.execute(text(f"DO $$ BEGIN {raising(self._states.pop(0))}; END $$"))
        return "done"


@pytest.mark.every_server
def test_what_passes_is_tried_again_and_what_lasts_is_not(patient: Engine) -> None:
    step = Faults(patient, *PASSING)
    assert retried(patient, step) == "done"
    assert step.attempts == len(PASSING) + 1
    for state in LASTING:
        step = Faults(patient, state)
        with pytest.raises(DBAPIError):
            retried(patient, step)
        assert step.attempts == 1, state


def test_an_engine_without_patience_fails_at_once(engine: Engine) -> None:
    step = Faults(engine, "57P01")
    with pytest.raises(DBAPIError):
        retried(engine, step)
    assert step.attempts == 1


def test_a_server_that_nobody_answers_for_is_waited_for(url: URL) -> None:
    away = connect_engine(url.set(port=1), "pytest away", patience=0.3)
    started = time.monotonic()
    with pytest.raises(DBAPIError) as raised, away.connect():
        pass
    assert is_transient(raised.value)
    with pytest.raises(DBAPIError) as raised:
        retried(away, away.connect)
    assert 0.3 <= time.monotonic() - started < 5
    assert "Given up after " in raised.value.__notes__[0]


@pytest.mark.parametrize("kind", [psycopg.errors.ConnectionTimeout, psycopg.errors.CancellationTimeout])
def test_a_server_that_accepts_and_does_not_answer_is_waited_for(kind: type[psycopg.OperationalError]) -> None:
    assert kind.sqlstate is None
    assert is_transient(OperationalError(None, None, kind("connection timeout expired")))


def test_patience_is_counted_from_the_first_failure_and_a_step_within_a_step_is_not_given_it_twice(url: URL) -> None:
    engine = connect_engine(url, "pytest patient", patience=0.5)
    step = Faults(engine, *["57P01"] * 1000)
    outer = 0

    def whole() -> str:
        nonlocal outer
        outer += 1
        if outer == 1:
            time.sleep(0.6)
        return retried(engine, step)

    started = time.monotonic()
    with pytest.raises(DBAPIError):
        retried(engine, whole)
    engine.dispose()
    assert outer == 1
    assert step.attempts > 2
    assert time.monotonic() - started < 3


def test_who_is_told_to_stop_waits_no_longer(url: URL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "_FIRST_REST", 60)
    monkeypatch.setattr(retrying, "_LONGEST_REST", 60)
    engine = connect_engine(url, "pytest patient", patience=600)
    stop = threading.Event()
    threading.Timer(0.2, stop.set).start()
    started = time.monotonic()
    with pytest.raises(DBAPIError):
        retried(engine, Faults(engine, *["57P01"] * 10), stop)
    engine.dispose()
    assert time.monotonic() - started < 10


def test_a_start_whose_commit_had_no_answer_is_written_down_once(engine: Engine, patient: Engine) -> None:
    with commits_unanswered(patient, 1):
        assert write_down(patient, Firing("close_events", NOW, "run-1")) == "ACCEPTED"
    assert column(engine, "SELECT outcome FROM job_firing") == ["ACCEPTED"]


def test_a_claim_whose_commit_had_no_answer_is_ours_and_is_finished_once(engine: Engine, patient: Engine) -> None:
    with commits_unanswered(patient, 1):
        held = claim(patient, "job", "key")
    assert held == Claim("job", "key", 1, 60.0)

    def store() -> None:
        with transaction(patient) as connection:
            finish(connection, held, {"rows": 3})

    with commits_unanswered(patient, 1):
        retried(patient, store)
    assert claim(engine, "job", "key") == Done({"rows": 3})


@pytest.mark.parametrize("number", range(1, 9))
def test_whichever_commit_has_no_answer_a_window_is_done_once_and_counts_what_it_did(
    engine: Engine, patient: Engine, number: int
) -> None:
    add_over(engine, events=3)
    rules = LifecycleRules(NOW, "run-1", chunk_size=2)

    def work() -> dict[str, Any]:
        closed = close_events(patient, rules)
        return {"events": closed.events, "left": closed.left}

    with commits_unanswered(patient, number) as commits:
        done = run_once(patient, Firing("close_events", NOW, "run-1"), work)
    assert (done.status, done.outcome, dict(done.result)) == ("DONE", "ACCEPTED", {"events": 3, "left": 0})
    assert commits[0] >= 6
    assert column(engine, "SELECT outcome FROM job_firing") == ["ACCEPTED"]
    assert column(engine, "SELECT state || ' ' || CAST(attempt AS text) FROM job_execution") == ["COMPLETED 1"]
    assert column(engine, "SELECT event_type FROM outbox_event") == ["EventClosed"] * 3


@pytest.mark.parametrize("unanswered", [(), (3,), (4,)])
def test_a_claim_that_was_swept_while_the_database_was_away_is_completed_all_the_same(
    engine: Engine, patient: Engine, unanswered: tuple[int, ...]
) -> None:
    def work() -> dict[str, Any]:
        # As the sweep finds it when nobody could renew it.
        execute(
            engine, "UPDATE job_execution SET state = 'FAILED', lease_until = NULL, finished_at = clock_timestamp()"
        )
        return {"rows": 3}

    with commits_unanswered(patient, *unanswered):
        done = run_once(patient, Firing("close_events", NOW, "run-1"), work)
    assert (done.status, done.attempt) == ("DONE", 2)
    assert claim(engine, "close_events", NOW.isoformat()) == Done({"rows": 3})


@pytest.mark.parametrize("by_hand", [True, False])
def test_a_claim_that_somebody_took_or_released_meanwhile_is_not_ours_to_complete(
    engine: Engine, patient: Engine, *, by_hand: bool
) -> None:
    def work() -> dict[str, Any]:
        with transaction(engine) as connection:
            release(connection, "close_events", NOW.isoformat())
        if not by_hand:
            claim(engine, "close_events", NOW.isoformat())
        return {}

    with pytest.raises(OvertakenError):
        run_once(patient, Firing("close_events", NOW, "run-1"), work)


def test_what_is_wrong_with_the_work_is_told_though_its_claim_cannot_be_given_back(
    engine: Engine, patient: Engine
) -> None:
    def work() -> dict[str, Any]:
        fail(engine, "UPDATE", "job_execution", times=1000)
        raise ValueError("the work's own fault")

    with pytest.raises(ValueError, match="the work's own fault"):
        run_once(patient, Firing("close_events", NOW, "run-1"), work)


def test_a_data_fault_is_not_retried_and_costs_nobody_else_anything(engine: Engine, patient: Engine) -> None:
    add_over(engine, events=1)
    fail(engine, "UPDATE", "event", raising("23514"), times=1000)
    closed = close_events(patient, LifecycleRules(NOW, "run-1"))
    assert (closed.events, len(closed.bad)) == (0, 1)
    # Once with its reservations and once without them; the sweep leaves it out.
    assert failures(engine) == 2


@pytest.mark.parametrize("seed", range(4))
def test_a_month_whose_connections_are_cut_at_random_comes_to_the_same_books(
    engine: Engine, patient: Engine, seed: int
) -> None:
    organizations = [add_organization(engine) for _ in range(7)]
    for number, organization in enumerate(organizations):
        add_movement(engine, organization, 10_000 + number, "2026-01-10T10:00")
    now = instant("2026-02-03T06:00")
    with cut_at_random(patient, seed, 0.03) as cut:
        retried(patient, lambda: settle_month(patient, JANUARY, now=now, first_month=FIRST, run_id="r", settled_by="t"))
        retried(patient, lambda: close_month(patient, JANUARY, now=now, first_month=FIRST, closed_by="t", run_id="r"))
        retried(patient, lambda: request_payouts(patient, JANUARY, PayoutRules(now)))
    assert cut
    net = [(10_000 + number) - 1_000 - 200 for number in range(7)]
    for table, amount in (("ledger_entry", "net"), ("organization_balance", "payable"), ("payout", "amount")):
        found = column(engine, f"SELECT {amount} FROM {table} ORDER BY organization_id")
        assert [abs(one - other) <= 1 for one, other in zip(found, net, strict=True)] == [True] * 7, table
    assert column(engine, "SELECT count(*) FROM outbox_event WHERE event_type = 'PayoutRequested'") == [7]
    assert column(engine, "SELECT count(*) FROM outbox_event WHERE event_type = 'MonthSettled'") == [1]


def test_a_lock_that_another_session_keeps_ends_the_sweep_in_its_time(engine: Engine, patient: Engine) -> None:
    add_over(engine, events=2)
    started = time.monotonic()
    with engine.connect() as other:
        other.execute(text("SELECT id FROM event ORDER BY id LIMIT 1 FOR UPDATE"))
        closed = close_events(patient, LifecycleRules(NOW, "run-1"))
        other.rollback()
    assert (closed.events, closed.left) == (1, 1)
    assert time.monotonic() - started < 9


def add_over(engine: Engine, events: int) -> None:
    organization = add_organization(engine)
    for _ in range(events):
        ends_at = NOW - timedelta(hours=1)
        over = add_event(engine, organization, starts_at=ends_at - timedelta(hours=2), ends_at=ends_at)
        add_reservation(engine, over, status="CONFIRMED", confirmed_at=NOW - timedelta(days=9))


def column(engine: Engine, query: str) -> list[Any]:
    with engine.connect() as connection:
        return list(connection.execute(text(query)).scalars())
