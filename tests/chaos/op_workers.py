"""Processes that do an operation's window, to be killed or raced: `OpWorker` in the test, the module the process.

The process says `ready`, waits for a line, and says in the end, as JSON, what came of its start.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.engine import URL

from tests.chaos.places import Place, at
from tests.rows import instant
from ticketflow_orch.database import connect_engine
from ticketflow_orch.firings import Firing
from ticketflow_orch.lifecycle import LifecycleRules, close_events, expire_reservations
from ticketflow_orch.reminders import ReminderRules, send_reminders
from ticketflow_orch.scheduled_work import run_once

NOW = instant("2026-06-02T02:30")
LEASE = 1.0
PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class Started:
    """How a start ended: the process's status (negative: killed by that signal), and what `run_once` said."""

    code: int
    status: str | None
    outcome: str | None
    result: Mapping[str, Any]
    complaint: str


class OpWorker:
    """A process that does a window of `job` as the run `run_id`; with a `place`, it kills itself there."""

    def __init__(
        self,
        url: URL,
        job: str,
        run_id: str,
        *,
        place: Place | None = None,
        parent: str | None = None,
        window: int = 0,
        chunk_size: int = 10,
    ) -> None:
        task = {
            "url": url.render_as_string(hide_password=False),
            "job": job,
            "run_id": run_id,
            "parent": parent,
            "window": window,
            "chunk_size": chunk_size,
            "place": place and asdict(place),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.op_workers", json.dumps(task)],
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

    def run(self) -> Started:
        """Go, and wait for the end."""
        self.go()
        return self.ended()

    def ended(self) -> Started:
        """Wait for the end."""
        output, complaint = self._process.communicate(timeout=PATIENCE)
        said = json.loads(output.splitlines()[-1]) if self._process.returncode == 0 else {}
        return Started(
            self._process.returncode, said.get("status"), said.get("outcome"), said.get("result", {}), complaint
        )

    def end(self) -> None:
        """Leave nothing of it."""
        self._process.kill()
        self._process.communicate(timeout=PATIENCE)


def operation(engine: Engine, job: str, run_id: str, chunk_size: int) -> Callable[[], Mapping[str, Any]]:
    """The work of `job` at the instant at which all operations of these tests happen."""
    rules = LifecycleRules(now=NOW, run_id=run_id, chunk_size=chunk_size)
    if job == "close_events":
        return lambda: asdict(close_events(engine, rules))
    if job == "expire_reservations":
        return lambda: asdict(expire_reservations(engine, rules))
    reminder_rules = ReminderRules(now=NOW, kinds={"24h": timedelta(hours=24)}, chunk_size=chunk_size)
    return lambda: asdict(send_reminders(engine, reminder_rules))


def main() -> None:
    task = json.loads(sys.argv[1])
    engine = connect_engine(task["url"], f"op worker {os.getpid()}")
    if task["place"]:
        at(engine, Place(**task["place"]), lambda: os.kill(os.getpid(), signal.SIGKILL))
    firing = Firing(task["job"], NOW + timedelta(minutes=task["window"]), task["run_id"], task["parent"])
    work = operation(engine, task["job"], task["run_id"], task["chunk_size"])
    say("ready")
    sys.stdin.readline()
    say(json.dumps(asdict(run_once(engine, firing, work, LEASE))))


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
