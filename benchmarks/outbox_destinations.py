"""Where the outbox benchmark delivers to: nowhere, or to a receiver of webhooks in a process of its own."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from ticketflow_orch.outbox.delivery import Commit, Message, Outcome, Transport, Verdict
from ticketflow_orch.outbox.delivery.configuration import Delivery, Route
from ticketflow_orch.outbox.delivery.destinations import WebhookDestination, webhook_secrets
from ticketflow_orch.outbox.delivery.webhook import WebhookTransport

# The variable that names the receiver's URL.
RECEIVER = "BENCHMARK_RECEIVER"
_SECRET = {"BENCHMARK_SECRET": "whsec_" + "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="}
_ROUTE = Route("there", 12, "block", "resend", None, timedelta(seconds=5))


@dataclass(frozen=True)
class Nowhere:
    """Takes everything, and notes it in `log`."""

    log: int

    def send(self, message: Message, commit: Commit) -> Outcome:
        """Note the number that the event carries."""
        commit()
        os.write(self.log, b"%d\n" % message.payload["number"])
        return Outcome(Verdict.DELIVERED)

    def look_up(self, message: Message) -> Outcome:
        """It remembers nothing."""
        return Outcome(Verdict.UNKNOWN, f"nobody knows of {message.event_id}")

    def close(self) -> None:
        """There is nothing to give back."""


@dataclass(frozen=True)
class Noted:
    """Another transport, whose deliveries are noted in `log`."""

    transport: Transport
    log: int

    def send(self, message: Message, commit: Commit) -> Outcome:
        """Send it there, and note it."""
        outcome = self.transport.send(message, commit)
        os.write(self.log, b"%d\n" % message.payload["number"])
        return outcome

    def look_up(self, message: Message) -> Outcome:
        """Ask there."""
        return self.transport.look_up(message)

    def close(self) -> None:
        """Close it."""
        self.transport.close()


def nothing(log: int) -> Delivery:
    """All events go nowhere."""
    return Delivery({}, _ROUTE, {"there": partial(Nowhere, log)})


def receiver(log: int) -> Delivery:
    """All events go to the receiver that RECEIVER names, signed."""
    destination = WebhookDestination(
        transport="webhook", url=os.environ[RECEIVER], secrets=tuple(_SECRET), allow_private=True
    )
    secrets = webhook_secrets(destination, _SECRET)
    return Delivery({}, _ROUTE, {"there": lambda: Noted(WebhookTransport(destination, secrets), log)})
