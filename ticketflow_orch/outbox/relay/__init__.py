"""The relay: takes events from the outbox to the outside world, at least once, in the order of each aggregate.

What makes it safe, however often processes are killed, frozen or started twice: an event is claimed by an UPDATE that
counts the attempt, and what becomes of it is written by another that names this attempt. Between the two nothing is
open in the database. A relay that goes away holds what it had claimed until the lease is over.

In here is what claims, sends and completes; `pipeline` shows the steps. Where events go and how is in `delivery`, what
people see and decide in `outbox.admin`.
"""

from ticketflow_orch.outbox.relay.backoff import Backoff
from ticketflow_orch.outbox.relay.config import Patience
from ticketflow_orch.outbox.relay.connections import connections_for
from ticketflow_orch.outbox.relay.drain import RESIDENT, Drained, drain, is_resident, longest_attempt
from ticketflow_orch.outbox.relay.due import Round, is_due

__all__ = [
    "RESIDENT",
    "Backoff",
    "Drained",
    "Patience",
    "Round",
    "connections_for",
    "drain",
    "is_due",
    "is_resident",
    "longest_attempt",
]
