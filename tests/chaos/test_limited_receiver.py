"""A receiver that takes so many events a second and refuses all others gets every event, near its limit, and none dies.

`LIMITED_EVENTS` says how many there are.
"""

from __future__ import annotations

import os
import threading
import time
from datetime import timedelta

import pytest
from sqlalchemy import Engine, text

from tests.outbox.relay.world import DELIVERED, THROTTLED, Receiver, add_many, delivery, run
from ticketflow_orch.outbox.delivery import Message, Outcome
from ticketflow_orch.outbox.relay import Backoff

EVENTS = int(os.environ.get("LIMITED_EVENTS", "500"))
RATE = max(100.0, EVENTS / 100)
IDEAL = EVENTS / RATE


class LimitedReceiver(Receiver):
    """Takes RATE a second, from a bucket that holds a second's, and says of others that they are too many."""

    def __init__(self) -> None:
        super().__init__(self._take)
        self._tokens, self._at, self._bucket = 1.0, time.monotonic(), threading.Lock()

    def _take(self, _: Message) -> Outcome:
        with self._bucket:
            now = time.monotonic()
            self._tokens, self._at = min(RATE, self._tokens + (now - self._at) * RATE), now
            if self._tokens < 1:
                return THROTTLED
            self._tokens -= 1
            return DELIVERED


@pytest.mark.timeout(int(60 + 4 * IDEAL))
def test_a_receiver_with_a_limit_gets_all_events_near_its_limit_and_none_dies(engine: Engine) -> None:
    receiver = LimitedReceiver()
    add_many(engine, EVENTS, aggregates=EVENTS)
    began = time.monotonic()
    moments = Backoff(base=timedelta(seconds=0.05), cap=timedelta(seconds=1))
    while undelivered(engine):
        run(engine, delivery(receiver, attempts=1), backoff=moments, budget=60)
    assert time.monotonic() - began < 15 + 1.5 * IDEAL
    with engine.connect() as connection:
        query = text("SELECT DISTINCT state, attempts - attempts_forgiven FROM outbox_event")
        assert connection.execute(query).all() == [("DELIVERED", 1)]
    assert len(receiver.sent) < 1.5 * EVENTS


def undelivered(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT count(*) FROM outbox_event WHERE ended_at IS NULL")).scalar_one())
