"""Reminders from the decision to the reader: an instant, a relay, and a mailbox that answers as a test says."""

from __future__ import annotations

from datetime import datetime, timedelta
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any

from sqlalchemy import Engine, text

from tests.outbox.relay.world import DELIVERED, Receiver, route, run
from ticketflow_orch.mail.message import MailOptions
from ticketflow_orch.mail.reminders import prepare_reminders
from ticketflow_orch.outbox.delivery import Outcome
from ticketflow_orch.outbox.delivery.configuration import Delivery
from ticketflow_orch.outbox.delivery.handlers import EventKind
from ticketflow_orch.outbox.events import MAILS
from ticketflow_orch.outbox.relay import Drained
from ticketflow_orch.ticketing.reminders import ReminderRules
from ticketflow_orch.ticketing.reminding import Reminding, is_due, remind

OPTIONS = MailOptions("tickets@example.com")
KINDS = {"24h": timedelta(hours=24)}


def kinds_at(now: datetime) -> dict[str, EventKind]:
    """How mails are prepared at the business time `now`."""
    kind = EventKind(lambda connection, messages: prepare_reminders(connection, messages, now=now, options=OPTIONS))
    return dict.fromkeys(("ReminderDue", "ReminderChanged", "EventCancelled"), kind)


def window(
    engine: Engine,
    now: datetime,
    kinds: dict[str, timedelta] | None = None,
    *,
    cancellations: bool = False,
    **rules: Any,
) -> Reminding:
    """A window of reminders at `now`, if its schedule would start one."""
    decided = ReminderRules(now, kinds or KINDS, **rules)
    with engine.connect() as connection:
        if not is_due(connection, decided, kinds_at(now)):
            return Reminding(0, 0, 0, 0, 0, 0, ())
    return remind(engine, decided, kinds_at(now), cancellations=cancellations)


def relay(engine: Engine, now: datetime, box: Receiver, **options: Any) -> Drained:
    """Deliver what is due, retries at once, to a server that forgets what it was sent."""
    options = {"in_doubt": "hold", "remembers": timedelta(0)} | options
    to = Delivery(
        dict.fromkeys(MAILS, route("mail", **options)), route("alerts"), {"mail": lambda: box, "alerts": Receiver}
    )
    with engine.begin() as connection:
        connection.execute(text("UPDATE outbox_event SET available_at = '-infinity' WHERE state = 'PENDING'"))
    return run(engine, to, kinds_at(now), now=lambda: now)


class Mailbox(Receiver):
    """A mail server that takes everything, or answers as a test says."""

    def __init__(self, *answers: Outcome) -> None:
        left = list(answers)
        super().__init__(lambda _: left.pop(0) if left else DELIVERED)

    @property
    def mails(self) -> list[EmailMessage]:
        """What it was sent, in order."""
        return [message_from_bytes(message.body, policy=policy.SMTP) for message in self.sent]

    @property
    def subjects(self) -> list[tuple[str, str]]:
        """To whom and about what."""
        return [(str(mail["To"]), str(mail["Subject"])) for mail in self.mails]
