"""Processes that do an operation's window, to be killed or raced; each says in the end what came of its start."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.engine import URL

from tests.chaos.places import Place, at
from tests.chaos.process import ForkedProcess
from tests.support.rows import instant
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.jobs.firings import Firing
from ticketflow_orch.jobs.run_once import run_once
from ticketflow_orch.ticketing.events import close_events
from ticketflow_orch.ticketing.lifecycle import LifecycleRules
from ticketflow_orch.ticketing.reminders import ReminderRules, send_reminders
from ticketflow_orch.ticketing.reservations import expire_reservations

NOW = instant("2026-06-02T02:30")
LEASE = 1.0


@dataclass(frozen=True, slots=True)
class Started:
    """How a start ended: the process's status (negative: killed by that signal), and what `run_once` said."""

    code: int
    status: str | None
    outcome: str | None
    result: Mapping[str, Any]
    complaint: str


class OpWorker(ForkedProcess):
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
        firing = Firing(job, NOW + timedelta(minutes=window), run_id, parent)
        super().__init__(_do, url, firing, place, chunk_size)

    def run(self) -> Started:
        """Go, and wait for the end."""
        self.go()
        return self.ended()

    def ended(self) -> Started:
        """Wait for the end."""
        code, said, complaint = self.outcome()
        said = said or {}
        return Started(code, said.get("status"), said.get("outcome"), said.get("result", {}), complaint)


def operation(engine: Engine, job: str, run_id: str, chunk_size: int) -> Callable[[], Mapping[str, Any]]:
    """The work of `job` at the instant at which all operations of these tests happen."""
    rules = LifecycleRules(now=NOW, run_id=run_id, chunk_size=chunk_size)
    if job == "close_events":
        return lambda: asdict(close_events(engine, rules))
    if job == "expire_reservations":
        return lambda: asdict(expire_reservations(engine, rules))
    reminder_rules = ReminderRules(now=NOW, kinds={"24h": timedelta(hours=24)}, chunk_size=chunk_size)
    return lambda: asdict(send_reminders(engine, reminder_rules))


def _do(wait: Callable[[], None], url: URL, firing: Firing, place: Place | None, chunk_size: int) -> dict[str, Any]:
    engine = connect_engine(url, f"op worker {os.getpid()}")
    if place:
        at(engine, place, lambda: os.kill(os.getpid(), signal.SIGKILL))
    work = operation(engine, firing.job, firing.run_id, chunk_size)
    wait()
    # As the claim keeps it and a repeat reads it.
    return dict(json.loads(json.dumps(asdict(run_once(engine, firing, work, LEASE)))))
