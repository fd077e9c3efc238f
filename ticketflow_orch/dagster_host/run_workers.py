"""Who executes a run: a process, and the file that it writes to and holds locked for as long as it lives.

The lock is the kernel's, so it also tells what process ids cannot: whether a worker of another container lives that
shares this home. A run's tags name its worker; those that a retry inherited name that of another run.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from ticketflow_orch.local.process_identity import Life, ProcessIdentity

WORKER_TAG = "ticketflow/worker"
# By it a worker knows the file that it writes to.
LOG_VARIABLE = "_TICKETFLOW_WORKER_LOG"
_SUFFIX = ".log"
_LONGEST_WAIT = 2.0


class HasWorkerError(Exception):
    """A run is being executed already."""


@dataclass(frozen=True, slots=True)
class RunWorker:
    """The process that executes the run `run_id`.

    `log` and `inode`: the file that it holds locked; None where no launcher started it, as for a run that somebody
    executes in a command of his own.
    """

    run_id: str
    process: ProcessIdentity
    log: str | None = None
    inode: int | None = None

    @classmethod
    def launched(cls, run_id: str, pid: int, log: Path) -> Self:
        """The worker that was just started as process `pid` and holds `log`."""
        return cls(run_id, ProcessIdentity.of(pid), str(log), log.stat().st_ino)

    @classmethod
    def this_process(cls, run_id: str) -> Self:
        """This process as the worker of a run."""
        log = Path(os.environ.get(LOG_VARIABLE, ""))
        if log.name == run_id + _SUFFIX and log.is_file():
            return cls.launched(run_id, os.getpid(), log)
        return cls(run_id, ProcessIdentity.of(os.getpid()))

    @classmethod
    def named(cls, run_id: str, tags: Mapping[str, str]) -> Self | None:
        """The worker that a run's tags name; None where they name none, or that of the run that this one repeats."""
        try:
            written = json.loads(tags.get(WORKER_TAG, ""))
            process = ProcessIdentity.parse(json.dumps(written["process"]))
            found = cls(written["run_id"], process, written["log"], written["inode"]) if process else None
        except (ValueError, TypeError, KeyError):
            return None
        return found if found is not None and found.run_id == run_id else None

    def to_json(self) -> str:
        """The worker as a run's tag has it."""
        process = json.loads(self.process.to_json())
        return json.dumps({"run_id": self.run_id, "process": process, "log": self.log, "inode": self.inode})

    @property
    def life(self) -> Life:
        """Whether it still lives, as far as that can be said here."""
        life = self.process.life
        if life != Life.OUT_OF_SIGHT or self.log is None:
            return life
        with suppress(OSError):
            if Path(self.log).stat().st_ino == self.inode:
                return Life.LIVES if is_held(Path(self.log)) else Life.GONE
        return life


@dataclass(frozen=True, slots=True)
class WorkerLogs:
    """The files of the workers that were started for one instance of Dagster, in a folder of its home."""

    folder: Path

    @classmethod
    def below(cls, dagster_home: str | Path) -> Self:
        """Those of the instance in `dagster_home`."""
        return cls(Path(dagster_home) / "workers")

    def of(self, run_id: str) -> Path:
        """The file of a run's worker, whether it is there or not."""
        return self.folder / f"{run_id}{_SUFFIX}"

    def open_held(self, run_id: str) -> IO[bytes]:
        """The file of a worker that is about to start, locked: the worker inherits the lock with the file.

        Raises:
            HasWorkerError: a worker of this run lives already.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        deadline = time.monotonic() + _LONGEST_WAIT
        while time.monotonic() < deadline:
            held = _created(self.of(run_id)) or _taken_over(self.of(run_id))
            if held is not None:
                return held
            time.sleep(0.05)
        raise HasWorkerError(f"Run {run_id} has a worker already, which holds {self.of(run_id)}.")

    def __iter__(self) -> Iterator[tuple[str, Path]]:
        """Each run that has a file here, with the file."""
        for log in sorted(self.folder.glob(f"*{_SUFFIX}")):
            yield log.stem, log

    def last_words(self, run_id: str, lines: int = 15) -> str:
        """The end of what a worker wrote; empty where there is nothing."""
        try:
            with self.of(run_id).open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - 16_384))
                return "\n".join(log.read().decode("utf-8", errors="replace").splitlines()[-lines:])
        except OSError:
            return ""


def is_held(log: Path) -> bool:
    """Whether a process holds the file locked; not, where there is no file."""
    try:
        with log.open("rb") as probe:
            return not _locks(probe, fcntl.LOCK_SH)
    except FileNotFoundError:
        return False


def _created(log: Path) -> IO[bytes] | None:
    """A new file under that name, locked; None where there is one. One that is not locked is a dead worker's."""
    draft, name = tempfile.mkstemp(dir=log.parent, prefix=f"{log.stem}.")
    held = os.fdopen(draft, "ab")
    try:
        _locks(held)
        os.link(name, log)
    except FileExistsError:
        held.close()
        return None
    finally:
        Path(name).unlink()
    return held


def _taken_over(log: Path) -> IO[bytes] | None:
    """The file of a worker that has ended, locked; None where a worker lives, or it was deleted at that moment."""
    try:
        held = log.open("ab")
    except FileNotFoundError:
        return None
    with suppress(FileNotFoundError):
        if _locks(held) and os.path.samestat(os.fstat(held.fileno()), log.stat()):
            return held
    held.close()
    return None


def _locks(file: IO[bytes], kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
