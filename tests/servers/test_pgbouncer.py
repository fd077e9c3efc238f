"""A pooler that keeps sessions serves as the server itself does; one that does not is refused in one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import psycopg
import pytest
from sqlalchemy import Engine
from sqlalchemy.engine import URL

from tests.chaos.books import fill, read_books
from tests.outbox.relay.world import DELIVERED, Receiver, add, resident
from tests.servers.pgbouncer import PROGRAM, pgbouncer
from tests.support.homes import fresh_home, variables_for
from tests.support.rows import add_event, add_reservation, instant
from tests.support.sessions import becomes
from tests.support.settled import settle
from ticketflow_orch.db import poolers
from ticketflow_orch.db.engine import SessionLimits, connect_engine, session_faults
from ticketflow_orch.errors import PreconditionFailed, Unavailable
from ticketflow_orch.local.databases import fault
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.outbox.delivery import Message, Outcome
from ticketflow_orch.ticketing.lifecycle import LifecycleRules
from ticketflow_orch.ticketing.reservations import expire_reservations

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="there is no PgBouncer here: apt-get install pgbouncer")
VARIABLE = "TICKETFLOW_DATABASE_URL"


@pytest.fixture
def pooled(url: URL, scratch: Path) -> Iterator[URL]:
    """The database of the test through a pooler in session mode."""
    with pgbouncer(url, scratch, "session") as through:
        yield through


def test_a_session_through_a_pooler_has_the_settings_and_bounds_that_were_asked_for(pooled: URL) -> None:
    engine = connect_engine(pooled, "pooled", limits=SessionLimits(statement_timeout=7), connections=2)
    try:
        for _ in range(2):
            with engine.connect() as connection:
                assert connection.exec_driver_sql("SHOW statement_timeout").scalar_one() == "7s"
                assert session_faults(connection) == ()
            engine.dispose()
    finally:
        engine.dispose()
    assert fault(pooled, VARIABLE) is None


def test_the_next_client_of_a_pooler_finds_nothing_of_what_we_set(pooled: URL) -> None:
    first = connect_engine(pooled, "first", limits=SessionLimits(statement_timeout=7), connections=1)
    with first.connect() as connection:
        process = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
    first.dispose()
    second = connect_engine(pooled, "second", limits=SessionLimits(statement_timeout=9), connections=1)
    with second.connect() as connection:
        found = connection.exec_driver_sql("SELECT pg_backend_pid(), current_setting('statement_timeout')").one()
    second.dispose()
    assert tuple(found) == (process, "9s")


def test_months_are_settled_and_reservations_expire_through_a_pooler_as_without(engine: Engine, pooled: URL) -> None:
    fill(engine)
    through = connect_engine(pooled, "pooled", connections=10)
    try:
        settle(through, chunk_size=50, workers=2)
        evening = add_event(engine, 5)
        add_reservation(engine, evening, expires_at=instant("2026-03-01T10:00"))
        expired = expire_reservations(through, LifecycleRules(now=instant("2026-04-02T10:00"), run_id="run"))
        assert expired.reservations == 1
        settled = read_books(engine)
        assert settled.dishonest == 0
        assert len(settled.ledger) > 100
        assert settle(through).changed_nothing
    finally:
        through.dispose()


def test_a_relay_that_stays_hears_of_events_through_a_pooler(engine: Engine, pooled: URL) -> None:
    arrived: list[float] = []

    def answer(_: Message) -> Outcome:
        arrived.append(time.monotonic())
        return DELIVERED

    through = connect_engine(pooled, "pooled", connections=20)
    took = []
    try:
        with resident(through, Receiver(answer)) as end:
            for number in range(9):
                time.sleep(0.1)
                add(engine, f"{number}")
                committed = time.monotonic()
                assert becomes(lambda number=number: len(arrived) > number)
                took.append(arrived[-1] - committed)
            assert end().delivered == 9
    finally:
        through.dispose()
    # A relay that does not hear looks once a second.
    assert median(took) < 0.2


@pytest.mark.parametrize("mode", ["transaction", "statement"])
@pytest.mark.parametrize("pool_size", [1, 20])
def test_a_pooler_that_keeps_no_sessions_is_refused_in_one_sentence(
    url: URL, scratch: Path, mode: str, pool_size: int
) -> None:
    with pgbouncer(url, scratch, mode, pool_size=pool_size) as through:
        found = fault(through, VARIABLE)
        assert isinstance(found, PreconditionFailed)
        assert "lends a connection for a transaction at a time" in str(found)
        assert "set pool_mode = session" in str(found)
        # Whatever it set is gone with the process in which it was set.
        if mode == "transaction":
            with psycopg.connect(plain(through), autocommit=True, prepare_threshold=None) as session:
                assert session.execute("SHOW idle_session_timeout").fetchone() == ("0",)


def test_one_that_keeps_no_sessions_is_refused_by_commands_and_named_by_doctor(
    url: URL, scratch: Path, server: EmbeddedServer
) -> None:
    with (
        pgbouncer(url, scratch, "transaction") as through,
        fresh_home(scratch, **variables_for(through, server.url("postgres"))),
    ):
        for command in (["status"], ["doctor"], ["health"]):
            ended = subprocess.run(
                [sys.executable, "-m", "ticketflow_orch", *command],
                check=False,
                capture_output=True,
                text=True,
                env=os.environ,
            )
            said = " ".join((ended.stdout + ended.stderr).split())
            assert ended.returncode == (2 if command == ["status"] else 1), said
            assert "Traceback" not in said
            assert "pool_mode" in said, said


def test_a_pooler_that_refuses_options_is_said_what_to_let_pass(url: URL, scratch: Path) -> None:
    with pgbouncer(url, scratch, "session", ignored="extra_float_digits") as through:
        found = fault(through, VARIABLE)
    assert isinstance(found, Unavailable)
    assert "ignore_startup_parameters = options" in str(found)


def test_a_pooler_is_looked_for_once_in_a_process(url: URL, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def process(session: psycopg.Connection) -> int:
        asked.append(session.info.backend_pid)
        return session.info.backend_pid

    monkeypatch.setattr(poolers, "_POOLED", {})
    monkeypatch.setattr(poolers, "_process", process)
    for _ in range(3):
        assert fault(url, VARIABLE) is None
    assert len(asked) == 1


def plain(url: URL) -> str:
    return url.set(drivername="postgresql").render_as_string(hide_password=False)
