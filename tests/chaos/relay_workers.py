"""Relays as processes of their own, to be killed, frozen and raced: `RelayWorker` in the test, the module the process.

The process says `ready` and drains again and again until it is ended.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

from sqlalchemy.engine import URL

from ticketflow_orch.database import connect_engine
from ticketflow_orch.delivery.configuration import Delivery, Route
from ticketflow_orch.delivery.destinations import WebhookDestination, WebhookSecrets
from ticketflow_orch.delivery.webhook import WebhookTransport
from ticketflow_orch.relay import Backoff, drain

# Short, so that what a killed relay held is soon due again.
DEADLINE = timedelta(seconds=1)
PATIENCE = 0.5
LEASE = DEADLINE.total_seconds() + PATIENCE


class RelayWorker:
    """A process that delivers to `receiver` whatever is due in the database at `url`."""

    def __init__(self, url: URL, receiver: str) -> None:
        task = {"url": url.render_as_string(hide_password=False), "receiver": receiver}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.relay_workers", json.dumps(task)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )

    def wait_until_ready(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Leave nothing of it; whatever it was about to do is not done."""
        self._process.kill()
        self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def is_alive(self) -> bool:
        return self._process.poll() is None


def main() -> None:
    task = json.loads(sys.argv[1])
    destination = WebhookDestination(
        transport="webhook",
        url=task["receiver"],
        secrets=("SECRET",),
        allow_private=True,
        connect_timeout=DEADLINE,
        deadline=DEADLINE,
    )
    transport = WebhookTransport(destination, WebhookSecrets((b"k" * 32,), {}))
    route = Route("there", 1000, "block", "hold", None, DEADLINE)
    delivery = Delivery({}, route, {"there": lambda: transport})
    engine = connect_engine(task["url"], "relay under attack")
    backoff = Backoff(base=timedelta(seconds=0.05), cap=timedelta(seconds=0.2))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        drain(engine, delivery, {}, budget=30, in_flight=4, batch=32, patience=PATIENCE, backoff=backoff)
        time.sleep(0.05)


if __name__ == "__main__":
    main()
