"""Relays as processes of their own, to be killed, frozen and raced: each drains again and again until it is ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import NoReturn

from sqlalchemy.engine import URL

from tests.chaos.process import ForkedProcess
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.outbox.delivery.configuration import Delivery, Route
from ticketflow_orch.outbox.delivery.destinations import WebhookDestination, WebhookSecrets
from ticketflow_orch.outbox.delivery.webhook import WebhookTransport
from ticketflow_orch.outbox.relay import Backoff, Patience, drain

# Short, so that what a killed relay held is soon due again.
DEADLINE = timedelta(seconds=1)
PATIENCE = 0.5
LEASE = DEADLINE.total_seconds() + PATIENCE


class RelayWorker(ForkedProcess):
    """A process that delivers to `receiver` whatever is due in the database at `url`."""

    def __init__(self, url: URL, receiver: str) -> None:
        super().__init__(_relay, url, receiver)


def _relay(wait: Callable[[], None], url: URL, receiver: str) -> NoReturn:
    destination = WebhookDestination(
        transport="webhook",
        url=receiver,
        secrets=("SECRET",),
        allow_private=True,
        connect_timeout=DEADLINE,
        deadline=DEADLINE,
    )
    transport = WebhookTransport(destination, WebhookSecrets((b"k" * 32,), {}))
    route = Route("there", 1000, "block", "hold", None, DEADLINE)
    delivery = Delivery({}, route, {"there": lambda: transport})
    engine = connect_engine(url, "relay under attack")
    backoff = Backoff(base=timedelta(seconds=0.05), cap=timedelta(seconds=0.2))
    soon = Patience(first=timedelta(seconds=0.05), longest=timedelta(seconds=0.2))
    wait()
    while True:
        options = {"patience": PATIENCE, "backoff": backoff, "patience_with": soon}
        drain(engine, delivery, {}, budget=30, in_flight=4, batch=32, **options)
        time.sleep(0.05)
