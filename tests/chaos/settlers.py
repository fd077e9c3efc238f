"""Processes that settle March, to be killed, frozen or raced; each says in the end what it found when it returned.

And those that help one of them, as the further runs of a month do.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy.engine import URL

from tests.chaos.books import CHUNK_SIZE
from tests.chaos.places import Place, at
from tests.chaos.process import ForkedProcess
from tests.support.settled import MARCH, settle
from ticketflow_orch.db.engine import SessionLimits, connect_engine
from ticketflow_orch.periods.state import period_state
from ticketflow_orch.settlement.shards import join


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended: its exit status (negative: killed by that signal), what it saw, what it complained of."""

    status: int
    joined: bool | None
    state: str | None
    complaint: str


class Settler(ForkedProcess):
    """A process that settles March on `go`; with a `place`, it sends itself `signal` there."""

    def __init__(self, url: URL, *, place: Place | None = None, signal: int = signal.SIGKILL, **task: Any) -> None:
        super().__init__(_settle, url, place, signal, task)

    def run(self) -> Ended:
        """Go, and wait for the end."""
        self.go()
        return self.ended()

    def ended(self) -> Ended:
        """Wait for the end."""
        status, seen, complaint = self.outcome()
        joined, state = seen or (None, None)
        return Ended(status, joined, state, complaint)

    def kill_after(self, seconds: float) -> Ended:
        """Kill it so many seconds from now, unless it has ended by then."""
        if not self.has_ended(seconds):
            self.kill()
        return self.ended()


def _settle(
    wait: Callable[[], None], url: URL, place: Place | None, number: int, task: dict[str, Any]
) -> tuple[bool, str | None]:
    options = {
        "chunk_size": task.get("chunk_size", CHUNK_SIZE),
        "chunk_pause": task.get("chunk_pause", 0),
        "workers": task.get("workers", 1),
    }
    engine = connect_engine(
        url,
        f"settler {os.getpid()}",
        limits=SessionLimits(idle_in_transaction_timeout=task.get("idle_timeout", 60)),
        connections=options["workers"] + 2,
    )
    if place:
        # To the thread itself: it may not take another step, whatever the others do.
        at(engine, place, lambda: signal.pthread_kill(threading.get_ident(), number))
    wait()
    result = settle(engine, **options)
    with engine.connect() as connection:
        return result.joined, period_state(connection, MARCH)


class Helper(ForkedProcess):
    """A process that joins the first pass of March on `go`; with a `place`, it kills itself there."""

    def __init__(self, url: URL, *, place: Place | None = None, workers: int = 1, pause: float = 0) -> None:
        super().__init__(_help, url, place, workers, pause)

    def ended(self) -> tuple[int, int, str]:
        """Wait for the end: the exit status, how many chunks it did, and what it says of that."""
        status, seen, complaint = self.outcome()
        chunks, said = seen or (0, complaint)
        return status, chunks, said


def _help(wait: Callable[[], None], url: URL, place: Place | None, workers: int, pause: float) -> tuple[int, str]:
    engine = connect_engine(url, f"helper {os.getpid()}", connections=workers + 2)
    if place:
        at(engine, place, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGKILL))
    wait()
    shared = join(engine, MARCH, 1, run_id=f"helper {os.getpid()}", workers=workers, pause=pause)
    return shared.chunks, shared.summary
