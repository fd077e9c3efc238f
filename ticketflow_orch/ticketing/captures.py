"""Captures: what of one is still here, as one piece of SQL for all who decide about it, and those without a ticket.

What is settled of them is the business of `settlement`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from ticketflow_orch.db.sql_files import sql


@dataclass(frozen=True, slots=True)
class MoneyWithoutTicket:
    """A capture that came after its reservation had ended: money is here, a ticket is not. Minor units."""

    reservation: str
    status: str
    movement: str
    currency: str
    exponent: int
    amount: int
    recorded_at: datetime


def money_without_ticket(connection: Connection, limit: int = 100) -> tuple[MoneyWithoutTicket, ...]:
    """Captures recorded after their reservation had ended of which anything was kept; oldest first."""
    rows = connection.exec_driver_sql(_MONEY_WITHOUT_TICKET, {"limit": limit})
    return tuple(MoneyWithoutTicket(**row._mapping) for row in rows)


def kept(movement: str, until: str | None = None) -> str:
    """SQL: minor units of `movement`, a row of money_movement by its alias, that are still here, or were `until` then.

    What reverses it may be reversed in turn (a refund that is voided, a chargeback that is won), and need not name the
    reservation. `until`: the SQL of an instant; what is dated at it or later is left out.
    """
    by_then = "" if until is None else f"WHERE back.occurred_at < {until}"
    return sql(__file__, "kept", movement=movement, by_then=by_then)


# What follows SELECT: the captures of `reservation` (a row by that name) of which anything is still here, as `capture`:
# a complete FROM and WHERE, to which `AND` may be added. Binds nothing.
KEPT_CAPTURE = sql(__file__, "kept_capture", kept=kept("capture"))

_MONEY_WITHOUT_TICKET = sql(__file__, "money_without_ticket", kept=kept("capture"))
