"""Watchers end in time, and say so, whatever becomes of the database that they ask."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest
from sqlalchemy.engine import URL
from typer.testing import CliRunner

from tests.conftest import run_sql
from tests.support.homes import MIGRATING, fresh_home, variables_for
from ticketflow_orch import cli
from ticketflow_orch.dagster_host.instance import running, write_home
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.monitoring.deadlines import Asked, NoAnswerError, answer_within
from ticketflow_orch.settings import read_settings

# In place of a quarter of a minute.
LONGEST = 2.0
Silenced = Callable[..., AbstractContextManager[None]]


@contextmanager
def falling_silent(server: Path, after: int) -> Iterator[int]:
    """A port that leads to the socket `server`, whose answers end after so many bytes of a connection: no end, no
    error, nothing."""
    listening = socket.create_server(("127.0.0.1", 0))
    ends: list[socket.socket] = [listening]

    def forward(source: socket.socket, target: socket.socket, most: int | None) -> None:
        sent = 0
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if most is None or sent < most:
                    target.sendall(data if most is None else data[: most - sent])
                    sent += len(data)

    def accept() -> None:
        with suppress(OSError):
            while True:
                near, _ = listening.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(str(server))
                ends.extend((near, far))
                for source, target, most in ((near, far, None), (far, near, after)):
                    threading.Thread(target=forward, args=(source, target, most), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listening.getsockname()[1]
    finally:
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@pytest.fixture
def storage(server: EmbeddedServer, scratch: Path, url: URL) -> Iterator[URL]:
    """Dagster's storage beside the database, made and current."""
    storage = server.url(f"{url.database}_dagster")
    with fresh_home(scratch, **variables_for(url, storage)), running(read_settings(), asked=MIGRATING):
        pass
    yield storage
    run_sql(server.url(), f"DROP DATABASE IF EXISTS {storage.database} WITH (FORCE)")


@pytest.fixture
def silenced(
    server: EmbeddedServer, scratch: Path, url: URL, storage: URL, monkeypatch: pytest.MonkeyPatch
) -> Silenced:
    """Makes a home whose databases fall silent after so many bytes, or only TicketFlow's own; watchers hurry."""
    monkeypatch.setattr("ticketflow_orch.cli.health.LONGEST", LONGEST)
    monkeypatch.setattr("ticketflow_orch.cli.health._LAST", 1.0)
    monkeypatch.setattr("ticketflow_orch.monitoring.metrics.LONGEST", LONGEST)

    @contextmanager
    def home(after: int, *, both: bool) -> Iterator[None]:
        with falling_silent(server.socket_directory / f".s.PGSQL.{server.url().port}", after) as port:
            behind = [
                URL.create("postgresql", one.username, host="127.0.0.1", port=port, database=one.database)
                for one in (url, storage)
            ]
            with fresh_home(scratch, **variables_for(behind[0], behind[1] if both else storage)):
                write_home(read_settings())
                yield

    return home


# From the first byte of the handshake to the middle of the answers.
@pytest.mark.parametrize("after", [0, 400, 3_000])
@pytest.mark.parametrize("command", ["health", "metrics"])
def test_a_watcher_ends_in_time_when_the_database_falls_silent(silenced: Silenced, command: str, after: int) -> None:
    with silenced(after, both=True):
        began = time.monotonic()
        result = CliRunner().invoke(cli.app, [command])
        assert time.monotonic() - began < LONGEST + 5
    assert result.exit_code == 1
    if command == "health":
        assert "database: it accepts connections and does not answer within 2 s; see its server" in result.output
    else:
        assert "ticketflow_up 0.0" in result.output
        assert "The database did not answer within 2 s" in result.output


def test_one_database_that_is_silent_hides_nothing_about_the_other(silenced: Silenced) -> None:
    with silenced(0, both=False):
        lines = CliRunner().invoke(cli.app, ["health"]).output.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["database", "daemon"]


def test_what_was_answered_is_told_before_it_is_said_that_the_rest_is_not() -> None:
    silence = threading.Event()

    def question() -> Iterator[str]:
        yield "one"
        silence.wait(30)

    told = Asked(question).until(time.monotonic() + 0.2)
    assert next(told) == "one"
    with pytest.raises(NoAnswerError):
        next(told)
    silence.set()


def test_an_answer_in_time_is_the_questions_own_and_so_is_its_error() -> None:
    assert answer_within(5, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        answer_within(5, lambda: 1 // 0)
