"""What a back office sends to a provider and to ticket holders, while servers fail or after they were restored."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from tests.mail.relayed import kinds_at
from tests.support.payments import IMPATIENT, delivery
from tests.support.rows import add_movement, instant
from ticketflow_orch.event_handlers import KINDS
from ticketflow_orch.outbox.relay import drain
from ticketflow_orch.ticketing.reminders import ReminderRules, send_reminders

START = instant("2026-04-20T18:00")
EVENING = START - timedelta(hours=24)
# Deliveries at a time: as many may be on their way when a server dies.
IN_FLIGHT = 2
DELIVERY = """
[destinations.provider]
transport = "webhook"
url = "{url}"
look_up_url = "{url}/{{aggregate_id}}"
secrets = ["PAYMENT_SECRET"]
allow_private = true
deadline = "PT2S"

[destinations.mail]
transport = "smtp"
host = "127.0.0.1"
port = {port}
security = "none"

[destinations.file]
transport = "file"

[routes.default]
destination = "file"

[routes.PayoutRequested]
destination = "provider"
in_doubt = "look_up"
remembers = "PT1H"

[routes.ReminderDue]
destination = "mail"
"""


@dataclass
class Work:
    """What the back office does all the while, in threads that end when `over` is set."""

    engine: Engine
    path: Path
    over: threading.Event = field(default_factory=threading.Event)
    # Ids of sales that the database acknowledged.
    recorded: list[int] = field(default_factory=list)

    def relay(self) -> None:
        """As a relay that stays, which is started again when it ends."""
        while not self.over.is_set():
            with suppress(DBAPIError):
                self.deliver(0.5)

    def deliver(self, seconds: float) -> None:
        to = delivery(self.path)
        try:
            drain(self.engine, to, _KINDS, budget=seconds, patience=1, backoff=IMPATIENT, in_flight=IN_FLIGHT, batch=4)
        finally:
            to.close()

    def sell(self, organization: int) -> None:
        """Record a sale in June again and again."""
        while not self.over.is_set():
            with suppress(DBAPIError):
                self.recorded.append(add_movement(self.engine, organization, 100, "2026-06-10T10:00"))
            time.sleep(0.01)


_KINDS = {**KINDS, **kinds_at(EVENING)}


def remind(engine: Engine) -> None:
    send_reminders(engine, ReminderRules(now=EVENING, kinds={"24h": timedelta(hours=24)}))
