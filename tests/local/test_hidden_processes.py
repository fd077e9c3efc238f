"""Our own Postgres where nobody may look into its processes, as root in a container."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from tests.support.sessions import becomes
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.local import postgres_processes
from ticketflow_orch.local.postgres import EmbeddedServer


@pytest.fixture
def unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container: root may not look into another account's processes."""

    def deny(process: psutil.Process) -> str:
        raise psutil.AccessDenied(process.pid)

    monkeypatch.setattr(psutil.Process, "cwd", deny)


def test_what_is_running_is_found_where_nobody_may_look_into_its_processes(own: EmbeddedServer, unseen: None) -> None:
    own.start()
    pid = own.pid()

    assert pid is not None
    assert not own.start()
    assert len(postgres_processes.working_in(own.data, own._cluster)) > 1
    assert own.stop()
    assert not own.is_running()


def test_another_server_is_not_taken_for_ours_where_nobody_may_look_into_it(
    own: EmbeddedServer, server: EmbeddedServer, unseen: None
) -> None:
    own.start()
    own.stop()
    (own.data / "postmaster.pid").write_text(f"{server.pid()}\n{own.data}\n")

    assert own.pid() is None
    assert own.start()
    assert own.pid() != server.pid()
    assert server.is_running()


def test_a_lock_in_doubt_is_left_and_what_postgres_says_about_it_is_a_sentence(
    own: EmbeddedServer, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    own.start()
    own.stop()
    lock = own.data / "postmaster.pid"
    lock.write_text(f"{server.pid()}\n{own.data}\n")

    def deny(process: psutil.Process) -> str:
        raise psutil.AccessDenied(process.pid)

    for asked in ("name", "cwd", "cmdline"):
        monkeypatch.setattr(psutil.Process, asked, deny)
    with pytest.raises(
        TicketflowError, match=r"would not start: lock file \"postmaster.pid\" already exists; .*remove"
    ):
        own.start()
    assert lock.exists()
    lock.unlink()


def test_a_server_whose_process_is_out_of_sight_is_neither_started_twice_nor_taken_for_stopped(
    own: EmbeddedServer,
) -> None:
    own.start()
    lock = own.data / "postmaster.pid"
    kept = lock.read_text()
    # In another container the same process has another id, and what has this one here is somebody else.
    lock.write_text(kept.replace(kept.split("\n", 1)[0], str(os.getpid()), 1))

    assert own.is_running()
    assert own.pid() is None
    assert not own.start()
    with pytest.raises(TicketflowError, match="such as in another container"):
        own.stop()
    lock.write_text(kept)


def test_processes_of_a_killed_server_are_waited_for_where_nobody_may_look_into_them(
    own: EmbeddedServer, unseen: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ticketflow_orch.local.postgres._LONGEST_DEATH", 0.5)
    own.start()
    pid = own.pid()
    assert pid is not None
    [checkpointer] = [each for each in psutil.Process(pid).children() if "checkpointer" in " ".join(each.cmdline())]
    checkpointer.suspend()
    os.kill(pid, signal.SIGKILL)
    assert becomes(lambda: not own.is_running())
    try:
        with pytest.raises(TicketflowError, match=rf"still use {own.data}; end them with `kill -9 {checkpointer.pid}`"):
            own.start()
        assert (own.data / "postmaster.pid").exists()
    finally:
        checkpointer.kill()
    assert own.start()
