"""A process that drains once and is killed by the event called `poison`: what the out-of-memory killer would do."""

from __future__ import annotations

import os
import signal
import sys

from tests.outbox.relay.world import DELIVERED, Receiver, delivery, run
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.outbox.delivery import Message, Outcome


def killed_by_poison(message: Message) -> Outcome:
    if message.payload["name"] == "poison":
        os.kill(os.getpid(), signal.SIGKILL)
    return DELIVERED


if __name__ == "__main__":
    url, attempts = sys.argv[1:]
    run(connect_engine(url, "poisoned relay"), delivery(Receiver(killed_by_poison), attempts=int(attempts)))
