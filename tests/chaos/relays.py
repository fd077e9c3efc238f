"""Processes that relay payouts until nothing is left to do with any, to be killed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from sqlalchemy.engine import URL

from tests.chaos.process import PATIENCE, ForkedProcess
from tests.support.payments import delivery, pay
from ticketflow_orch.db.engine import connect_engine

# In seconds: what is claimed is begun, or given back; with an attempt's deadline it is how long a kill delays an event.
SOON = 0.3


class Relay(ForkedProcess):
    """A process that relays what the configuration at `path` says, on `go`."""

    def __init__(self, url: URL, path: Path) -> None:
        super().__init__(_relay, url, path)

    def kill_after(self, seconds: float) -> int:
        """Kill it so many seconds from now, unless it has ended by then; returns its exit status."""
        if not self.has_ended(seconds):
            self.kill()
        return self.outcome()[0]


def _relay(wait: Callable[[], None], url: URL, path: Path) -> None:
    engine = connect_engine(url, f"relay {os.getpid()}", connections=30)
    to = delivery(path)
    wait()
    pay(engine, to, PATIENCE, SOON)
