"""Which databases serve, who starts and stops the embedded server, and what is said when one cannot be used."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from tests.conftest import run_sql
from tests.support.homes import fresh_home, variables_for
from ticketflow_orch.db.engine import TCP, connect_engine
from ticketflow_orch.errors import PreconditionFailed, TicketflowError, Unavailable
from ticketflow_orch.local import databases
from ticketflow_orch.local.databases import ensure_running, fault, resolve, serving
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.settings import read_settings

SECRET = "s3cr3t-of-the-books"


@pytest.fixture
def home(scratch: Path) -> Iterator[Path]:
    with fresh_home(scratch) as home:
        yield home


@pytest.fixture
def two_names(server: EmbeddedServer) -> Iterator[tuple[URL, URL]]:
    """URLs of two databases that do not exist yet on a running server."""
    urls = [server.url(f'Absent "{part}" {uuid.uuid4().hex[:8]}') for part in ("ours", "dagster")]
    yield urls[0], urls[1]
    for url in urls:
        run_sql(server.url(), f"DROP DATABASE IF EXISTS {quoted(url)} WITH (FORCE)")


def quoted(url: URL) -> str:
    """The name of the database, as SQL writes it."""
    name = str(url.database).replace('"', '""')
    return f'"{name}"'


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def external(scratch: Path, ticketflow: URL | str, dagster: URL | str) -> databases.Databases:
    texts = [
        url if isinstance(url, str) else url.render_as_string(hide_password=False) for url in (ticketflow, dagster)
    ]
    variables = {"TICKETFLOW_DATABASE_URL": texts[0], "TICKETFLOW_DAGSTER_DATABASE_URL": texts[1]}
    with fresh_home(scratch, **variables):
        return resolve(read_settings())


def test_without_variables_the_embedded_server_serves_both_and_resolving_starts_nothing(home: Path) -> None:
    found = resolve(read_settings())

    assert found.ticketflow.database == "ticketflow"
    assert found.dagster.database == "ticketflow_dagster"
    assert found.embedded == EmbeddedServer(home)
    assert not home.exists()


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ("TICKETFLOW_DATABASE_URL", "TICKETFLOW_DAGSTER_DATABASE_URL"),
        ("TICKETFLOW_DAGSTER_DATABASE_URL", "TICKETFLOW_DATABASE_URL"),
    ],
)
def test_one_url_without_the_other_is_refused(scratch: Path, given: str, missing: str) -> None:
    with (
        fresh_home(scratch, **{given: "postgresql://u:p@host/x"}),
        pytest.raises(TicketflowError, match=rf"{given} is set but {missing} is not"),
    ):
        resolve(read_settings())


def test_one_database_for_both_is_refused_whatever_drivers_are_named(scratch: Path) -> None:
    with pytest.raises(TicketflowError, match="both name database 'x' as 'u' on host:5432") as refusal:
        external(scratch, f"postgresql://u:{SECRET}@host:5432/x", f"postgresql+psycopg2://v:{SECRET}@host/x")
    assert SECRET not in str(refusal.value)


@pytest.mark.parametrize("wrong", [f"{SECRET}", f"mysql://u:{SECRET}@host/x", f"postgresql://u:{SECRET}@host"])
def test_what_is_no_postgres_url_is_refused_without_repeating_it(scratch: Path, wrong: str) -> None:
    with pytest.raises(TicketflowError, match="TICKETFLOW_DAGSTER_DATABASE_URL") as refusal:
        external(scratch, "postgresql://u:p@host/x", wrong)
    assert SECRET not in str(refusal.value)


def test_each_url_names_the_driver_that_its_user_needs(scratch: Path) -> None:
    found = external(scratch, "postgres://u:p@host/x", "postgresql://u:p@host/y")

    assert found.ticketflow.render_as_string(hide_password=False) == "postgresql+psycopg://u:p@host/x"
    dagster = found.dagster.difference_update_query(TCP)
    assert dagster.render_as_string(hide_password=False) == "postgresql+psycopg2://u:p@host/y"
    assert found.embedded is None


def test_the_embedded_server_stays_ours_where_the_environment_names_it_outright(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in resolve(read_settings()).environment().items():
        monkeypatch.setenv(name, value)

    assert resolve(read_settings()).embedded == EmbeddedServer(home)


@pytest.mark.every_server
def test_missing_databases_are_created_even_when_two_start_at_once(scratch: Path, two_names: tuple[URL, URL]) -> None:
    with fresh_home(scratch, **variables_for(*two_names)):
        given = read_settings()

        def serve(_: int) -> bool:
            with serving(given) as found:
                return fault(found.ticketflow, "x") is None and fault(found.dagster, "x") is None

        with ThreadPoolExecutor(2) as threads:
            assert list(threads.map(serve, range(2))) == [True, True]


def test_a_database_that_somebody_else_creates_after_we_looked_is_taken(
    server: EmbeddedServer, scratch: Path, url: URL, two_names: tuple[URL, URL], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []

    def look_and_be_overtaken(asked: URL, variable: str) -> TicketflowError | None:
        found = fault(asked, variable)
        looked.append((asked.database, found is None))
        if found is not None and len(looked) == 2:
            run_sql(server.url(), f"CREATE DATABASE {quoted(two_names[1])}")
        return found

    monkeypatch.setattr(databases, "fault", look_and_be_overtaken)
    with fresh_home(scratch, **variables_for(url, two_names[1])), serving(read_settings()):
        assert [well for _, well in looked] == [True, False, True]


def test_a_role_that_may_not_create_a_database_is_told_who_must(
    server: EmbeddedServer, scratch: Path, url: URL, two_names: tuple[URL, URL]
) -> None:
    role = f"clerk_{uuid.uuid4().hex[:8]}"
    run_sql(server.url(), f"CREATE ROLE {role} LOGIN PASSWORD '{SECRET}'")
    missing = two_names[1].set(username=role, password=SECRET)

    with (
        fresh_home(scratch, **variables_for(url, missing)),
        pytest.raises(TicketflowError) as refusal,
        serving(read_settings()),
    ):
        pass

    run_sql(server.url(), f"DROP ROLE {role}")
    assert "does not exist and could not be created (permission denied to create database)" in str(refusal.value)
    assert "CREATE DATABASE" in str(refusal.value)
    assert SECRET not in str(refusal.value)


def test_an_unreachable_server_is_one_sentence_without_the_password(scratch: Path) -> None:
    nowhere = URL.create("postgresql", "u", SECRET, "127.0.0.1", 1, "x")

    with (
        fresh_home(scratch, **variables_for(nowhere, nowhere.set(database="y"))),
        pytest.raises(TicketflowError) as refusal,
        serving(read_settings()),
    ):
        pass

    assert str(refusal.value) == (
        "No connection to database 'x' as 'u' on 127.0.0.1:1 (Connection refused); "
        "start that server or correct TICKETFLOW_DATABASE_URL."
    )


def test_a_wrong_password_is_one_sentence_without_it(home: Path) -> None:
    server = EmbeddedServer(home)
    server.start()
    run_sql(server.url(), "CREATE ROLE clerk LOGIN PASSWORD 'another'")
    (server.data / "pg_hba.conf").write_text("local all postgres trust\nlocal all all scram-sha-256\n")
    run_sql(server.url(), "SELECT pg_reload_conf()")
    refused = server.url().set(username="clerk", password=SECRET)

    found = fault(refused, "TICKETFLOW_DATABASE_URL")

    assert isinstance(found, Unavailable)
    assert 'password authentication failed for user "clerk"' in str(found)
    assert SECRET not in str(found)


def test_a_url_with_an_option_that_libpq_does_not_know_is_a_fault_too(url: URL) -> None:
    assert "nonsense" in str(fault(url.update_query_dict({"nonsense": "1"}), "TICKETFLOW_DATABASE_URL"))


def test_a_postgres_that_is_too_old_is_refused(url: URL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(databases, "MINIMUM_POSTGRES", 99)

    found = fault(url, "TICKETFLOW_DATABASE_URL")

    assert isinstance(found, PreconditionFailed)
    assert "is Postgres 18; 99 or later is needed" in str(found)


def test_the_last_user_of_the_embedded_server_stops_it(home: Path) -> None:
    server = EmbeddedServer(home)
    first, second = serving(read_settings()), serving(read_settings())
    first.__enter__()
    second.__enter__()

    first.__exit__(None, None, None)
    assert server.pid() is not None
    second.__exit__(None, None, None)
    assert server.pid() is None


def test_a_user_that_was_killed_does_not_keep_the_embedded_server_running(home: Path) -> None:
    code = (
        "from ticketflow_orch.local.databases import serving; from ticketflow_orch.settings import settings\n"
        "with serving(settings()): print('serving', flush=True); input()"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "serving\n"
        other.send_signal(signal.SIGKILL)
    assert EmbeddedServer(home).pid() is not None

    with serving(read_settings()):
        pass

    assert EmbeddedServer(home).pid() is None


def test_a_server_that_was_asked_to_stay_outlives_its_users_until_it_is_stopped(home: Path) -> None:
    ensure_running(read_settings())
    with serving(read_settings()):
        pass
    assert EmbeddedServer(home).pid() is not None

    assert databases.stop(read_settings())
    assert EmbeddedServer(home).pid() is None
    assert not databases.stop(read_settings())


def test_a_killed_server_starts_again_when_the_last_of_its_backends_is_gone(home: Path) -> None:
    server = EmbeddedServer(home)
    server.start()
    engine = connect_engine(server.url(), "busy")

    def count() -> None:
        # In the middle of a query a backend does not notice that its server is gone.
        with suppress(DBAPIError), engine.connect() as connection:
            connection.exec_driver_sql("SELECT count(*) FROM (SELECT generate_series(1, 20000000)) AS long")

    with ThreadPoolExecutor(1) as threads:
        busy = threads.submit(count)
        killed = psutil.Process(server.pid())
        backends: list[psutil.Process] = []
        while not busy.done() and not any("SELECT" in " ".join(each.cmdline()) for each in backends):
            backends = killed.children()
        killed.kill()
        while server.pid() is not None:
            time.sleep(0.01)
        assert server.start()
        left = [each.pid for each in backends if is_alive(each)]
        busy.result(timeout=30)
    engine.dispose()

    assert backends
    assert left == []
    assert fault(server.url(), "x") is None


def test_a_server_of_somebody_else_is_not_stopped(scratch: Path, url: URL) -> None:
    with (
        fresh_home(scratch, **variables_for(url, url.set(database="y"))),
        pytest.raises(TicketflowError, match="names a server of your own"),
    ):
        databases.stop(read_settings())
