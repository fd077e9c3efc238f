"""Reservations that only a person can end: a payment never ended, or its money got no ticket.

The expiry, in `reservations`, reports each once and leaves it alone from then on. Here they are listed, and resolved by
hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row

from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.errors import InvalidInput, PreconditionFailed
from ticketflow_orch.ticketing.captures import KEPT_CAPTURE
from ticketflow_orch.ticketing.lifecycle import announce_expired


@dataclass(frozen=True, slots=True)
class StuckPayment:
    """A reservation held by a payment that outlasted its grace.

    `payment_started_at`: None where money came and nobody had noted that a payment began.
    `captured`: its money has come in, and was kept.
    """

    reservation: str
    event: str
    quantity: int
    payment_started_at: datetime | None
    reported_at: datetime
    captured: bool


def stuck_payments(connection: Connection, limit: int = 100) -> tuple[StuckPayment, ...]:
    """The first `limit` reservations that wait for a person, in the order in which they were made."""
    rows = connection.exec_driver_sql(_LIST, {"limit": limit})
    return tuple(StuckPayment(**row._mapping) for row in rows)


def confirm(connection: Connection, reference: str, now: datetime) -> None:
    """Confirm the reservation `reference`: its buyer has paid, whatever became of the payment's messages.

    Raises:
        InvalidInput: there is no such reservation.
        PreconditionFailed: its payment is not stuck.
    """
    held = _locked(connection, reference)
    connection.exec_driver_sql(
        "UPDATE reservation SET status = 'CONFIRMED', confirmed_at = %(now)s::timestamptz WHERE id = %(id)s",
        {"id": held.id, "now": now},
    )


def expire(connection: Connection, reference: str, now: datetime, by: str) -> None:
    """Release the reservation `reference`, and announce it in the same transaction; `by` says who decided it.

    Raises:
        InvalidInput: there is no such reservation.
        PreconditionFailed: its payment is not stuck, or its money has come in and was not given back.
    """
    held = _locked(connection, reference)
    # After the lock, in a statement of its own: a capture that committed while we waited is seen.
    capture = connection.exec_driver_sql(_CAPTURE, {"id": held.id}).scalar_one_or_none()
    if capture is not None:
        raise PreconditionFailed(
            f"Reservation {reference!r} has the capture {capture!r}; confirm it with --confirm, or refund it first."
        )
    connection.exec_driver_sql(_EXPIRE, {"id": held.id, "now": now, "by": by})
    connection.exec_driver_sql(_ANNOUNCE, {"id": held.id, "now": now})


def _locked(connection: Connection, reference: str) -> Row[Any]:
    held = connection.exec_driver_sql(_LOCK, {"reference": reference}).one_or_none()
    if held is None:
        raise InvalidInput(
            f"There is no reservation {reference!r}; `ticketflow reservations stuck` lists those to resolve."
        )
    if held.status != "ACTIVE" or held.stuck_reported_at is None:
        raise PreconditionFailed(
            f"The payment of reservation {reference!r} is not stuck (the reservation is {held.status}); "
            "`ticketflow reservations stuck` lists those that are."
        )
    return held


_LIST = sql(__file__, "list", kept_capture=KEPT_CAPTURE)

_LOCK = "SELECT id, status, stuck_reported_at FROM reservation WHERE public_ref = %(reference)s FOR UPDATE"

_CAPTURE = sql(__file__, "capture", kept_capture=KEPT_CAPTURE)

_EXPIRE = """
    UPDATE reservation SET status = 'EXPIRED', expired_at = %(now)s::timestamptz, expired_by = %(by)s WHERE id = %(id)s
"""

_ANNOUNCE = sql(__file__, "announce", announce_expired=announce_expired(known="skip"))
