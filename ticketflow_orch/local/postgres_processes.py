"""The processes of a Postgres server of our own: which are its own, and how one is started and ends.

In a container root may not look into the processes of another account: their folder is not to be seen then, but their
command line is. What cannot be seen at all is never taken for gone.
"""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import psutil

# The shell leaves at once, so that nobody takes the server for a child of the process that started it; it says its id
# first.
_DETACH = 'log=$1; shift; exec "$@" >>"$log" 2>&1 & echo $!'


def works_in(pid: int, data: Path, cluster: str) -> bool | None:
    """Whether `pid` is a Postgres process of the data directory `data`; None when that cannot be known.

    Not any other Postgres: a process id is given again, and what is taken for our server is stopped for it.
    `cluster` is what our servers write into the titles of their processes.
    """
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE or "postgres" not in process.name():
            return False
    except psutil.NoSuchProcess:
        # Processes of others may be hidden altogether.
        return None if is_there(pid) else False
    except psutil.Error:
        return None
    try:
        return _is_same(process.cwd(), data)
    except psutil.AccessDenied:
        return _is_titled(process, data, cluster)
    except (psutil.Error, OSError):  # gone meanwhile
        return False


def working_in(data: Path, cluster: str) -> list[int]:
    """The ids of all Postgres processes of the data directory `data` that can be seen."""
    return [process.pid for process in psutil.process_iter() if works_in(process.pid, data, cluster)]


def spawn(
    command: Sequence[str | Path], output: int | IO[bytes], account: pwd.struct_passwd | None
) -> subprocess.Popen[bytes]:
    """Start one of Postgres' programs, as `account` where there is one, in a session that no Ctrl-C reaches."""
    # A PGPORT or PGDATA in our environment is about another server; messages are read, so they are in English.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        cwd="/",
        env={**environment, "LC_ALL": "C"},
        start_new_session=True,
        user=None if account is None else account.pw_uid,
        group=None if account is None else account.pw_gid,
        extra_groups=None if account is None else [],
    )


def detach(command: Sequence[str | Path], log: Path, account: pwd.struct_passwd | None) -> tuple[int, str]:
    """Start a server that outlives us and writes to the end of `log`; returns its process id.

    And what the shell says, which is something only where the log cannot be written.
    """
    with spawn(["sh", "-c", _DETACH, "sh", log, *command], subprocess.PIPE, account) as shell:
        said = shell.communicate()[0].decode(errors="replace").splitlines()
    return next(int(line) for line in said if line.isdigit()), "\n".join(line for line in said if not line.isdigit())


def ended(pid: int, number: signal.Signals, seconds: float) -> bool:
    """Send the process `pid` a signal and wait; returns whether it has ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)
    deadline = time.monotonic() + seconds
    while not is_over(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def is_over(pid: int) -> bool:
    """Whether the process `pid` is gone, or a zombie: where there is no init, nobody takes those away."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return not is_there(pid)
    except psutil.Error:
        return False


def is_there(pid: int) -> bool:
    """Whether there is a process `pid`, whatever it is."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _is_titled(process: psutil.Process, data: Path, cluster: str) -> bool | None:
    """Whether the command line names `data`, as a server's does, or `cluster`, as those of its processes do."""
    try:
        words = process.cmdline()
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return None
    if words and words[0].startswith("postgres:"):
        return f"postgres: {cluster}: " in " ".join(words)
    if "-D" not in words[:-1]:
        return None
    named = words[words.index("-D") + 1]
    # A folder that was moved while the server ran is not to be found by its old name.
    return _is_same(named, data) if Path(named).exists() else None


def _is_same(folder: str, data: Path) -> bool:
    with suppress(OSError):
        return Path(folder).samefile(data)
    return False
