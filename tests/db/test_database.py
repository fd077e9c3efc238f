"""Sessions with bounds, transactions that lose no work silently, and URLs that are refused without being repeated."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, InternalError, OperationalError

from tests.conftest import run_sql
from tests.support.rows import add_movement, add_organization
from tests.support.sessions import two_sessions
from ticketflow_orch.db.engine import SessionLimits, SwallowedError, connect_engine, parse_url, transaction
from ticketflow_orch.db.errors import database_fault
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.months import Month

SECRET = "hunter2"


def names(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.execute(text("SELECT name FROM organization ORDER BY id")).scalars())


def rename(name: str) -> str:
    return f"UPDATE organization SET name = '{name}'"


def shown(engine: Engine, setting: str) -> str:
    with engine.connect() as connection:
        return str(connection.exec_driver_sql(f"SHOW {setting}").scalar_one())


@contextmanager
def opened(url: str | URL, application: str = "test", **options: Any) -> Iterator[Engine]:
    engine = connect_engine(url, application, **options)
    try:
        yield engine
    finally:
        engine.dispose()


# --- Transactions


def rename_and_stumble(connection: Connection) -> None:
    connection.execute(text(rename("renamed")))
    with suppress(DBAPIError):
        connection.execute(text("SELECT 1 / 0"))


def rename_and_fail(engine: Engine) -> None:
    with transaction(engine) as connection:
        connection.execute(text(rename("renamed")))
        connection.execute(text("SELECT 1 / 0"))


def rename_and_swallow(engine: Engine) -> None:
    with transaction(engine) as connection:
        rename_and_stumble(connection)


def test_a_transaction_commits_when_its_block_ends(engine: Engine) -> None:
    add_organization(engine, name="before")
    with transaction(engine) as connection:
        connection.execute(text(rename("renamed")))
    assert names(engine) == ["renamed"]


def test_a_transaction_rolls_back_when_its_block_raises(engine: Engine) -> None:
    add_organization(engine, name="before")
    with pytest.raises(DBAPIError, match="division by zero"):
        rename_and_fail(engine)
    assert names(engine) == ["before"]


def test_an_error_that_was_swallowed_fails_the_transaction(engine: Engine) -> None:
    add_organization(engine, name="before")
    with pytest.raises(SwallowedError):
        rename_and_swallow(engine)
    assert names(engine) == ["before"]


def test_elsewhere_the_work_would_be_lost_without_a_word(engine: Engine) -> None:
    add_organization(engine, name="before")
    with engine.begin() as connection:
        rename_and_stumble(connection)
    assert names(engine) == ["before"]


def test_an_error_that_a_savepoint_took_back_is_no_error(engine: Engine) -> None:
    add_organization(engine, name="before")
    with transaction(engine) as connection:
        connection.execute(text(rename("renamed")))
        with suppress(DBAPIError), connection.begin_nested():
            connection.execute(text("SELECT 1 / 0"))
    assert names(engine) == ["renamed"]


# --- Sessions


@pytest.mark.every_server
def test_the_session_is_in_utc_whatever_the_url_the_environment_and_the_database_say(
    url: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGTZ", "Asia/Tokyo")
    monkeypatch.setenv("PGOPTIONS", "-c timezone=Asia/Tokyo")
    run_sql(url, f"ALTER DATABASE {url.database} SET timezone = 'Asia/Tokyo'")
    with opened(url.update_query_dict({"options": "-c timezone=Asia/Tokyo -c work_mem=5MB"})) as engine:
        assert (shown(engine, "timezone"), shown(engine, "work_mem")) == ("UTC", "5MB")


def test_instants_and_months_are_the_same_in_a_session_of_any_zone(engine: Engine) -> None:
    edge = Month(2026, 4).window("Europe/Madrid").starts_at
    add_movement(engine, add_organization(engine), 100, edge.isoformat())
    for zone in ("UTC", "Asia/Tokyo", "America/St_Johns"):
        with engine.connect() as connection:
            connection.exec_driver_sql(f"SET LOCAL timezone = '{zone}'")
            statement = text("SELECT occurred_at FROM money_movement WHERE occurred_at = :edge")
            read: datetime = connection.execute(statement, {"edge": edge}).scalar_one()
        assert read.utcoffset() is not None
        assert Month.of_instant(read, "Europe/Madrid") == Month(2026, 4)
        assert Month.of_instant(read - timedelta(microseconds=1), "Europe/Madrid") == Month(2026, 3)


def test_a_session_says_what_it_is_for(url: URL) -> None:
    given = url.update_query_dict({"application_name": "somebody else"})
    with opened(given, "settlement 2026-03 " * 9) as engine:
        assert shown(engine, "application_name") == ("settlement 2026-03 " * 9)[:63]


@pytest.mark.every_server
def test_a_statement_a_wait_and_an_idle_transaction_are_ended_at_their_bounds(engine: Engine, url: URL) -> None:
    add_organization(engine)
    limits = SessionLimits(statement_timeout=1, lock_timeout=0.1, idle_in_transaction_timeout=0.3)
    with opened(url, limits=limits) as bounded, bounded.connect() as connection, two_sessions(engine) as (holder, _):
        with pytest.raises(OperationalError, match="statement timeout"):
            connection.exec_driver_sql("SELECT pg_sleep(5)")
        connection.rollback()
        holder.run(rename("held"))
        with pytest.raises(OperationalError, match="lock timeout"):
            connection.exec_driver_sql(rename("waiting"))
        connection.rollback()
        connection.exec_driver_sql("SELECT 1")
        holder.run("SELECT pg_sleep(0.5)")
        with pytest.raises(InternalError, match="idle-in-transaction timeout") as ended:
            connection.exec_driver_sql("SELECT 1")
    fault = database_fault(ended.value)
    assert fault is not None
    assert fault.sentence.startswith("The database ended a transaction that nobody worked on (")


def test_no_more_sessions_are_opened_than_allowed(url: URL) -> None:
    with opened(url, connections=2) as engine, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: shown(engine, "timezone"), range(20)))
        assert engine.pool.checkedin() <= 2
        with engine.connect(), engine.connect() as second:
            count = text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
            assert second.execute(count).scalar_one() == 2


# --- URLs


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg", "postgresql+psycopg2"])
def test_any_postgres_url_is_taken_and_reached_with_psycopg_3(url: URL, scheme: str) -> None:
    given = url.set(drivername=scheme).render_as_string(hide_password=False)
    with opened(given) as engine:
        assert (engine.driver, shown(engine, "timezone")) == ("psycopg", "UTC")


@pytest.mark.parametrize(
    ("text_", "sentence"),
    [
        ("", "is not a database URL"),
        (f"user:{SECRET}@host/ticketflow", "is not a database URL"),
        (f"postgresql://user:{SECRET}@host:port/ticketflow", "is not a database URL"),
        (f"postgresql//user:{SECRET}@host/ticketflow", "is not a database URL"),
        (f"mysql://user:{SECRET}@host/ticketflow", "must name a Postgres database"),
        (f"sqlite:///{SECRET}", "must name a Postgres database"),
        (f"postgresql://user:{SECRET}@host", "must name a Postgres database"),
        (f"postgresql://user:{SECRET}@host/", "must name a Postgres database"),
        (f"host=h password={SECRET} dbname=ticketflow", "is not a database URL"),
        (f"postgresql://user:{SECRET}@[::1/ticketflow", "is not a database URL"),
    ],
)
def test_a_bad_url_is_refused_in_one_sentence_that_does_not_repeat_it(text_: str, sentence: str) -> None:
    with pytest.raises(TicketflowError) as caught:
        parse_url(text_, "SOME_VARIABLE")
    said = str(caught.value)
    assert said.startswith(f"SOME_VARIABLE {sentence}")
    assert SECRET not in said
    assert "\n" not in said
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_password_shows_neither_in_an_engine_nor_in_what_cannot_be_reached() -> None:
    with opened(f"postgresql://user:{SECRET}@127.0.0.1:1/ticketflow") as engine:
        assert SECRET not in repr(engine)
        with pytest.raises(OperationalError) as caught:
            engine.connect()
    assert SECRET not in str(caught.value)
