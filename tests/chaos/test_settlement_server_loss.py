"""The server ends sessions, or ends altogether, in the middle of a settlement."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import OperationalError

from tests.chaos.books import CHUNK_SIZE, Books, fill, read_books
from tests.support.sessions import becomes
from tests.support.settled import settle
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.db.migrate import migrate
from ticketflow_orch.local.postgres import DEFAULT_PARAMETERS, EmbeddedServer

LOSSES = int(os.environ.get("CHAOS_KILLS", "8"))
CRASHES = int(os.environ.get("CHAOS_CRASHES", "1"))
SEED = int(os.environ["CHAOS_SEED"])


@pytest.mark.parametrize("seed", [SEED])
def test_sessions_that_are_terminated_at_any_statement_cost_nothing_but_a_repeat(
    engine: Engine, url: URL, clean: Books, seed: int
) -> None:
    victim = connect_engine(url, "chaos victim", connections=4)
    losses = terminate_sessions(victim, engine, Random(seed))
    try:
        for _ in range(20 * LOSSES):
            # Whatever it ends with but a lost session fails the test.
            with suppress(OperationalError):
                settle(victim, chunk_size=CHUNK_SIZE)
            if len(losses) >= LOSSES:
                break
    finally:
        victim.dispose()
    assert len(losses) >= LOSSES
    settle(engine, chunk_size=CHUNK_SIZE)
    assert read_books(engine) == clean, f"CHAOS_SEED={seed} CHAOS_KILLS={LOSSES}"


def test_a_patient_settlement_whose_sessions_are_terminated_at_any_statement_needs_no_repeat(
    engine: Engine, url: URL, clean: Books
) -> None:
    victim = connect_engine(url, "chaos victim", connections=4, patience=60)
    losses = terminate_sessions(victim, engine, Random(SEED))
    try:
        settle(victim, chunk_size=CHUNK_SIZE)
    finally:
        victim.dispose()
    assert losses
    assert read_books(engine) == clean, f"CHAOS_SEED={SEED}"


def terminate_sessions(victim: Engine, admin: Engine, random: Random, odds: float = 0.04) -> list[int]:
    """Let the server end sessions of `victim` as they are about to run a statement or commit; returns whom it ended."""
    ended: list[int] = []

    def strike(connection: Connection, *_: Any) -> None:
        if random.random() < odds:
            driver = connection.connection.driver_connection
            assert isinstance(driver, psycopg.Connection)
            ended.append(driver.info.backend_pid)
            with admin.connect() as other:
                # Sometimes it is gone before the statement arrives, sometimes they race.
                other.execute(
                    text("SELECT pg_terminate_backend(:pid, :patience)"),
                    {"pid": ended[-1], "patience": random.choice([0, 1000])},
                )

    event.listen(victim, "before_cursor_execute", strike)
    event.listen(victim, "commit", strike)
    return ended


@pytest.fixture
def doomed(scratch: Path) -> Iterator[EmbeddedServer]:
    """A cluster of the test's own, which keeps what it has acknowledged."""
    server = EmbeddedServer(scratch / "doomed", None, {**DEFAULT_PARAMETERS, "max_wal_size": "128MB"})
    server.start()
    migrate(server.url())
    yield server
    server.remove()


def test_a_server_that_crashes_keeps_every_chunk_that_was_committed(doomed: EmbeddedServer, clean: Books) -> None:
    engine = connect_engine(doomed.url(), "chaos", connections=6)
    fill(engine)
    for crash in range(1, CRASHES + 1):
        with ThreadPoolExecutor(1) as thread:
            run = thread.submit(settle, engine, chunk_size=2, chunk_pause=0.05)
            assert becomes(partial(has_committed, engine, 5 * crash), unless=run.done)
            seen = committed_chunks(engine)
            doomed.stop("immediate")
            assert isinstance(run.exception(timeout=60), OperationalError)
        doomed.start()
        assert seen <= committed_chunks(engine)
    settle(engine)
    assert read_books(engine) == clean
    assert settle(engine).changed_nothing
    engine.dispose()


@pytest.mark.parametrize("how", ["fast", "immediate"])
def test_a_patient_settlement_goes_on_when_the_server_is_back(doomed: EmbeddedServer, clean: Books, how: str) -> None:
    engine = connect_engine(doomed.url(), "chaos", connections=6, patience=60)
    fill(engine)
    with ThreadPoolExecutor(1) as thread:
        run = thread.submit(settle, engine, chunk_size=2, chunk_pause=0.05)
        assert becomes(partial(has_committed, engine, 5), unless=run.done)
        doomed.stop(how)
        time.sleep(1)
        assert not run.done()
        doomed.start()
        assert run.result(timeout=60).settlement is not None
    assert read_books(engine) == clean
    engine.dispose()


def has_committed(engine: Engine, chunks: int) -> bool:
    return len(committed_chunks(engine)) >= chunks


def committed_chunks(engine: Engine) -> set[Any]:
    """The chunks that are done, each with the first of its entries as it was written."""
    with engine.connect() as connection:
        return {
            tuple(row)
            for row in connection.execute(
                text("""
                    SELECT low_id, rows_new, finished_at, (
                        SELECT min(posted_at) FROM ledger_entry WHERE organization_id BETWEEN low_id AND high_id)
                    FROM settlement_chunk WHERE state = 'DONE'
                """)
            )
        }
