"""Pausing payouts: nothing is sent, whatever is requested meanwhile, until somebody resumes them."""

from __future__ import annotations

from sqlalchemy import Connection

from ticketflow_orch.errors import PreconditionFailed
from ticketflow_orch.outbox import stops
from ticketflow_orch.payouts.events import EVENT_TYPE


def pause(connection: Connection, reason: str, by: str) -> None:
    """Stop sending payouts; what is being sent is finished.

    Raises:
        PreconditionFailed: they are paused already.
    """
    if stops.stop(connection, "EVENT_TYPE", EVENT_TYPE, reason, by) is None:
        raise PreconditionFailed(f"Payouts are paused already, {paused(connection)}; resume them first.")


def paused(connection: Connection) -> str | None:
    """Who paused payouts and why, as part of a sentence; None when they are sent."""
    stop = stops.stop_of(connection, "EVENT_TYPE", EVENT_TYPE)
    return None if stop is None else f"by {stop.stopped_by}: {stop.reason}"


def resume(connection: Connection) -> None:
    """Send payouts again.

    Raises:
        PreconditionFailed: they are not paused.
    """
    if not stops.resume(connection, "EVENT_TYPE", EVENT_TYPE):
        raise PreconditionFailed("Payouts are not paused; there is nothing to resume.")
