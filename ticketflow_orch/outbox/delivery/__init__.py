"""Delivery: where events go, by `configuration`, and the transports that take them there.

A transport sends one message and says what is known of it. It decides nothing: whether an event is tried again, is dead
or in doubt is for the relay, which records the answer. Nothing in here reads or writes the database.
"""

from ticketflow_orch.outbox.delivery.model import (
    Commit,
    FencedError,
    Message,
    Outcome,
    Transport,
    Verdict,
    envelope,
    printable,
)

__all__ = ["Commit", "FencedError", "Message", "Outcome", "Transport", "Verdict", "envelope", "printable"]
