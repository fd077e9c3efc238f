"""Our own Postgres: started and stopped on request, whatever became of the process that started it."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from tests.conftest import run_sql
from tests.support.sessions import becomes
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.local.postgres import EmbeddedServer

SMALL = {"shared_buffers": "16MB", "fsync": "off"}


def cluster(directory: Path) -> EmbeddedServer:
    return EmbeddedServer(directory, parameters=SMALL)


@pytest.fixture
def own(scratch: Path) -> Iterator[EmbeddedServer]:
    """A cluster of this test's own, not started yet."""
    server = cluster(scratch / f"own-{uuid.uuid4().hex[:6]}")
    yield server
    server.remove()


def setting(server: EmbeddedServer, name: str) -> str:
    engine = connect_engine(server.url(), "test", connections=1)
    try:
        with engine.connect() as connection:
            return str(connection.execute(text(f"SHOW {name}")).scalar_one())
    finally:
        engine.dispose()


def elsewhere(server: EmbeddedServer, call: str) -> subprocess.Popen[str]:
    """`call` on the server, in a process of its own that prints what it returned."""
    program = f"""
from pathlib import Path
from ticketflow_orch.local.postgres import EmbeddedServer
print(EmbeddedServer(Path({str(server.directory)!r}), parameters={SMALL!r}).{call})
"""
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return output.strip()


def test_it_starts_once_and_stops_once(own: EmbeddedServer) -> None:
    assert own.pid() is None
    assert own.start()
    pid = own.pid()
    assert not own.start()
    assert own.pid() == pid
    assert setting(own, "data_directory") == str(own.data)
    assert own.stop()
    assert own.pid() is None
    assert not own.stop()


def test_of_two_processes_that_start_it_at_once_one_does_and_it_outlives_both(own: EmbeddedServer) -> None:
    both = [elsewhere(own, "start()") for _ in range(2)]
    assert sorted(said(process) for process in both) == ["False", "True"]
    assert setting(own, "data_directory") == str(own.data)
    assert said(elsewhere(own, "stop()")) == "True"
    assert own.pid() is None


def test_it_listens_on_a_socket_in_a_private_folder_only(server: EmbeddedServer) -> None:
    assert setting(server, "listen_addresses") == ""
    assert setting(server, "unix_socket_directories") == str(server.socket_directory)
    assert stat.S_IMODE(server.socket_directory.stat().st_mode) == 0o700


def test_a_killed_server_starts_again_with_what_it_had(own: EmbeddedServer) -> None:
    own.start()
    run_sql(own.url(), "CREATE DATABASE kept")
    pid = own.pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert becomes(lambda: own.pid() is None)
    assert (own.data / "postmaster.pid").exists()
    assert not own.stop()
    assert own.start()
    run_sql(own.url("kept"), "SELECT 1")


def test_a_process_id_that_another_server_has_by_now_is_not_ours(own: EmbeddedServer, server: EmbeddedServer) -> None:
    own.start()
    own.stop()
    (own.data / "postmaster.pid").write_text(f"{server.pid()}\n{own.data}\n")
    assert own.pid() is None
    assert not own.stop()
    assert own.start()
    assert own.pid() != server.pid()
    assert setting(server, "data_directory") == str(server.data)


def test_a_path_too_long_for_a_socket_gets_a_short_folder_for_it(scratch: Path) -> None:
    server = cluster(scratch / ("long-" * 20) / uuid.uuid4().hex)
    try:
        server.start()
        assert server.socket_directory != server.data
        assert setting(server, "data_directory") == str(server.data)
    finally:
        server.remove()
    assert not server.socket_directory.exists()


def test_why_it_would_not_start_is_said_in_one_sentence(own: EmbeddedServer, capfd: pytest.CaptureFixture[str]) -> None:
    refusing = EmbeddedServer(own.directory, parameters={**SMALL, "max_connections": "many"})
    with pytest.raises(
        TicketflowError, match=rf"The embedded Postgres in {own.data} would not start: .*max_connections"
    ):
        refusing.start()
    assert refusing.pid() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs it as another account")
def test_below_a_closed_folder_of_root_nothing_is_opened(scratch: Path) -> None:
    closed = scratch / f"closed-{uuid.uuid4().hex[:6]}"
    closed.mkdir(mode=0o700)
    (closed / "project").mkdir(mode=0o750)
    folders = [closed / "project", closed, *closed.parents]
    before = {folder: (folder.stat().st_mode, folder.stat().st_uid) for folder in folders}
    server = cluster(closed / "project" / ".ticketflow")
    try:
        server.start()
        assert setting(server, "data_directory") == str(server.data)
        assert closed not in server.data.parents
        assert {folder: (folder.stat().st_mode, folder.stat().st_uid) for folder in folders} == before
        assert stat.S_IMODE(server.data.stat().st_mode) == 0o700
    finally:
        server.remove()
    assert not server.data.exists()
