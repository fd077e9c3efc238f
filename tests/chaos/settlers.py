"""Processes that settle March, to be killed, frozen or raced: `Settler` in the test, the module itself the process.

The process says `ready`, waits for a line, and says in the end, as JSON, what it found when the settlement returned.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy.engine import URL

from tests.chaos.books import CHUNK_SIZE
from tests.chaos.places import Place, at
from tests.sessions import becomes
from tests.test_settlement import MARCH, settle
from ticketflow_orch.database import SessionLimits, connect_engine
from ticketflow_orch.settlement.passes import period_state

PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended: its exit status (negative: killed by that signal), what it saw, what it complained of."""

    status: int
    joined: bool | None
    state: str | None
    complaint: str


class Settler:
    """A process that settles March when told to `go`; with a `place`, it sends itself `signal` there."""

    def __init__(self, url: URL, *, place: Place | None = None, signal: int = signal.SIGKILL, **task: Any) -> None:
        task |= {"url": url.render_as_string(hide_password=False), "signal": signal}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.settlers", json.dumps(task | {"place": place and asdict(place)})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )

    def wait_until_ready(self) -> None:
        assert self._process.stdout is not None
        assert select.select([self._process.stdout], [], [], PATIENCE)[0], "the process did not start"
        assert self._process.stdout.readline() == "ready\n"

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def run(self) -> Ended:
        """Go, and wait for the end."""
        self.go()
        return self.ended()

    def ended(self) -> Ended:
        """Wait for the end."""
        output, complaint = self._process.communicate(timeout=PATIENCE)
        seen = json.loads(output.splitlines()[-1]) if self._process.returncode == 0 else {}
        return Ended(self._process.returncode, seen.get("joined"), seen.get("state"), complaint)

    def kill_after(self, seconds: float) -> Ended:
        """Kill it so many seconds from now, unless it has ended by then."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
        return self.ended()

    def wait_until_frozen(self) -> None:
        process = psutil.Process(self._process.pid)
        assert becomes(lambda: process.status() == psutil.STATUS_STOPPED, patience=PATIENCE)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Leave nothing of it."""
        self._process.kill()
        self._process.communicate(timeout=PATIENCE)


def main() -> None:
    task = json.loads(sys.argv[1])
    options = {
        "chunk_size": task.get("chunk_size", CHUNK_SIZE),
        "chunk_pause": task.get("chunk_pause", 0),
        "workers": task.get("workers", 1),
    }
    engine = connect_engine(
        task["url"],
        f"settler {os.getpid()}",
        limits=SessionLimits(idle_in_transaction_timeout=task.get("idle_timeout", 60)),
        connections=options["workers"] + 2,
    )
    if task["place"]:
        # To the thread itself: it may not take another step, whatever the others do.
        at(engine, Place(**task["place"]), lambda: signal.pthread_kill(threading.get_ident(), task["signal"]))
    say("ready")
    sys.stdin.readline()
    result = settle(engine, **options)
    with engine.connect() as connection:
        say(json.dumps({"joined": result.joined, "state": period_state(connection, MARCH)}))


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
