"""Child processes that end together, with all that they started, within a bound."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

# Seconds from the first SIGKILL on.
_LONGEST_DEATH = 1.0
# Bytes; weeks of a daemon that has nothing to complain of.
LARGEST_LOG = 20_000_000


@dataclass(frozen=True, slots=True)
class Child:
    """A process that leads a session of its own, and the file that it writes to."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def last_words(self, lines: int = 5) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text("utf-8", errors="replace").splitlines()[-lines:])


class Children:
    """Processes of which none is left when the `with` block ends; they get `grace` seconds to end in order.

    Each leads a session, so that the terminal's Ctrl-C reaches only us and everything that it started is known by the
    session: also what leads a group of its own, and what has lost its parent. Their output goes to files in `logs`;
    what came before, in this start or the one before, is kept beside the new one, see `keep_logs_small`.
    """

    def __init__(self, logs: Path, environment: Mapping[str, str], grace: float) -> None:
        self._logs = logs
        self._environment = environment
        self._grace = grace
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        self._logs.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()

    def start(self, name: str, command: Sequence[str], *, folder: Path, keep_open: int) -> Child:
        """Start `command` in `folder`; the file descriptor `keep_open` stays open in it (and in nothing it starts)."""
        log = self._logs / f"{name}.log"
        if log.exists():
            log.replace(self._previous(name))
        # To its end, wherever that is: the file is cut while they write.
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                cwd=folder,
                start_new_session=True,
                pass_fds=(keep_open,),
            )
        child = Child(name, process, log)
        self._children.append(child)
        return child

    def keep_logs_small(self, most: int = LARGEST_LOG) -> None:
        """Begin each log anew that is larger than `most` bytes; what it held is what came before.

        A line that is written at this very moment may be lost.
        """
        for child in self._children:
            with suppress(OSError):
                if child.log.stat().st_size > most:
                    shutil.copyfile(child.log, self._previous(child.name))
                    os.truncate(child.log, 0)

    def _previous(self, name: str) -> Path:
        return self._logs / f"{name}.previous.log"

    def first_ended(self) -> Child | None:
        """A child that is no longer there, if any."""
        return next((child for child in self._children if child.process.poll() is not None), None)

    def _stop(self) -> None:
        """End every session: asked to at once, killed when the grace is over."""
        sessions = {child.process.pid for child in self._children}
        _signal_sessions(sessions, signal.SIGTERM)
        deadline = time.monotonic() + self._grace
        while time.monotonic() < deadline and self._are_there(sessions):
            time.sleep(0.02)
        # A process that is killed may have started another just before.
        deadline = time.monotonic() + _LONGEST_DEATH
        while time.monotonic() < deadline and self._are_there(sessions):
            _signal_sessions(sessions, signal.SIGKILL)
            time.sleep(0.02)
        for child in self._children:
            child.process.wait(timeout=5)
        self._children.clear()

    def _are_there(self, sessions: Set[int]) -> bool:
        for child in self._children:
            child.process.poll()  # reaped, or it would be counted as one of its session
        return bool(_members(sessions))


@contextmanager
def socket_folder() -> Iterator[Path]:
    """A folder for sockets, gone when the block ends: where temporary files lie, if an address can be made of that."""
    usual = tempfile.gettempdir()
    fits = re.fullmatch(r"[A-Za-z0-9/._+-]{1,60}", usual) is not None
    with tempfile.TemporaryDirectory(prefix="ticketflow-", dir=usual if fits else "/tmp") as folder:  # noqa: S108
        yield Path(folder)


def listens(path: Path) -> bool:
    """Whether a process accepts connections on the socket at `path`, or would if fewer were waiting."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        return probe.connect_ex(os.fsencode(path)) in (0, errno.EAGAIN)


def _signal_sessions(sessions: Set[int], number: signal.Signals) -> None:
    for pid in _members(sessions):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _members(sessions: Set[int]) -> list[int]:
    """The living processes of `sessions`."""
    return [pid for pid in psutil.pids() if _is_of(pid, sessions)]


def _is_of(pid: int, sessions: Set[int]) -> bool:
    try:
        return os.getsid(pid) in sessions and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (OSError, psutil.NoSuchProcess):
        return False
