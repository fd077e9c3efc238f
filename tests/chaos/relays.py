"""Processes that relay payouts, to be killed: `Relay` in the test, the module itself the process.

The process says `ready`, waits for a line, and relays until nothing is left to do with any payout.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

from sqlalchemy.engine import URL

from tests.payments import delivery, pay
from ticketflow_orch.database import connect_engine

PATIENCE = 60.0
# In seconds: what is claimed is begun, or given back; with an attempt's deadline it is how long a kill delays an event.
SOON = 0.3


class Relay:
    """A process that relays what the configuration at `path` says when told to `go`."""

    def __init__(self, url: URL, path: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.relays", url.render_as_string(hide_password=False), str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )

    def go(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert select.select([self._process.stdout], [], [], PATIENCE)[0], "the process did not start"
        assert self._process.stdout.readline() == "ready\n"
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def kill_after(self, seconds: float) -> int:
        """Kill it so many seconds from now, unless it has ended by then; returns its exit status."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._process.communicate(timeout=PATIENCE)
        return self._process.returncode

    def end(self) -> None:
        """Leave nothing of it."""
        self._process.kill()
        self._process.communicate(timeout=PATIENCE)


def main() -> None:
    url, path = sys.argv[1:]
    engine = connect_engine(url, f"relay {os.getpid()}", connections=30)
    to = delivery(Path(path))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    pay(engine, to, PATIENCE, SOON)


if __name__ == "__main__":
    main()
