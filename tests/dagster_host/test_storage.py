"""Dagster's storage keeps its connections, and survives a server that has ended them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import psycopg2
import pytest
import sqlalchemy.event
from dagster import DagsterInstance
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage
from dagster._core.test_utils import create_run_for_test
from sqlalchemy import Connection, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import OperationalError

from tests.conftest import run_sql
from tests.support.homes import bootstrapped, dagster_storage
from ticketflow_orch.dagster_host.run_workers import LOG_VARIABLE
from ticketflow_orch.local.postgres import EmbeddedServer


@pytest.fixture
def storage(server: EmbeddedServer, url: URL) -> Iterator[URL]:
    """The URL of a database for Dagster's storage that does not exist yet."""
    with dagster_storage(server, url) as storage:
        yield storage


def session(instance: DagsterInstance) -> str:
    """The server's process that answers what the instance asks."""
    return ask(instance, "SELECT CAST(pg_backend_pid() AS text)")


def timeout(instance: DagsterInstance) -> str:
    return ask(instance, "SHOW statement_timeout")


def ask(instance: DagsterInstance, question: str) -> str:
    events = instance.event_log_storage
    assert isinstance(events, SqlEventLogStorage)
    with events.index_connection() as connection:
        return str(connection.execute(text(question)).scalar_one())


@pytest.mark.parametrize("web", [False, True], ids=["daemon", "web server"])
def test_queries_share_a_session_until_the_server_ends_it(scratch: Path, url: URL, storage: URL, web: bool) -> None:
    with bootstrapped(scratch, url, storage) as instance:
        if web:
            instance.optimize_for_webserver(statement_timeout=15_000, pool_recycle=3600, max_overflow=20)
        first = session(instance)
        assert session(instance) == first
        assert timeout(instance) == ("15s" if web else "0")

        run_sql(url, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{storage.database}'")
        assert instance.get_runs() == []
        assert instance.all_instigator_state() == []
        assert session(instance) != first


def test_the_process_of_a_run_waits_for_a_server_that_is_away_for_longer_than_dagster_does(
    scratch: Path, url: URL, storage: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bootstrapped(scratch, url, storage) as instance:
        events = instance.event_log_storage
        assert isinstance(events, SqlEventLogStorage)
        refused = []

        def refuse(*_: object) -> None:
            if len(refused) < 10:
                refused.append(1)
                raise psycopg2.OperationalError("the database system is starting up")

        sqlalchemy.event.listen(events._engine, "do_connect", refuse)  # type: ignore[attr-defined]
        events._engine.dispose()  # type: ignore[attr-defined]
        monkeypatch.setattr("tenacity.nap.time.sleep", lambda _: None)
        monkeypatch.setenv(LOG_VARIABLE, "some run's")
        assert session(instance)
        assert len(refused) == 10


@pytest.mark.parametrize("of_a_run", [True, False], ids=["run", "daemon"])
def test_the_process_of_a_run_writes_an_event_again_whose_statement_was_cut(
    scratch: Path, url: URL, storage: URL, monkeypatch: pytest.MonkeyPatch, *, of_a_run: bool
) -> None:
    with bootstrapped(scratch, url, storage) as instance:
        events = instance.event_log_storage
        assert isinstance(events, SqlEventLogStorage)
        run = create_run_for_test(instance)
        cut = []

        def cut_once(connection: Connection, cursor: object, statement: str, *_: object) -> None:
            if statement.startswith("INSERT INTO event_logs") and not cut:
                cut.append(statement)
                run_sql(
                    url, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{storage.database}'"
                )

        sqlalchemy.event.listen(events._engine, "before_cursor_execute", cut_once)  # type: ignore[attr-defined]
        if of_a_run:
            monkeypatch.setenv(LOG_VARIABLE, "some run's")
        with nullcontext() if of_a_run else pytest.raises(OperationalError):
            instance.report_engine_event("what a run says", run)
        assert len(cut) == 1
        said = [record.event_log_entry.message for record in instance.get_records_for_run(run.run_id).records]
        assert said == (["what a run says"] if of_a_run else [])
