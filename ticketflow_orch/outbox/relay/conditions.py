"""How each destination does, as all relays know it: whether it fails, how long it is left alone, what it takes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import Connection, Row

from ticketflow_orch.db.sql_files import sql

# In seconds: a turn that is further away is not waited for.
SOON = 5.0
# Longer than each of them can be.
OPEN, PROBED, PAUSED, NEXT = "10 minutes", "3 hours", "2 hours", "5 minutes"


@dataclass(frozen=True, slots=True)
class Condition:
    """How a destination does, by the database. Lengths of time are in seconds; nothing of the past is below zero.

    `is_open`: it fails, so that one event at a time tries it. `open_for`: until the next may. `probed_for`: how long
    somebody may still be trying. `paused_for`: how long it asked to be left alone. `next_for`: until its next turn at
    the `rate`, in events a second, that it takes by what it said; None: as many as it is sent.
    """

    is_failing: bool = False
    is_open: bool = False
    open_for: float = 0.0
    probed_for: float = 0.0
    paused_for: float = 0.0
    rate: float | None = None
    next_for: float = 0.0

    @property
    def rests(self) -> bool:
        """Whether nothing may be sent to it at present."""
        return max(self.open_for, self.probed_for, self.paused_for) > 0 or self.next_for > SOON

    @property
    def is_away(self) -> bool:
        """Whether what can go another way should: it fails, or asked to be left alone for long."""
        return (self.is_open and self.rests) or self.paused_for > SOON


WELL = Condition()


def conditions(connection: Connection) -> dict[str, Condition]:
    """How each destination does of which anything is known."""
    return {row.name: condition_of(row) for row in connection.exec_driver_sql(_CONDITIONS)}


def condition_of(row: Row[Any]) -> Condition:
    """The condition that a row with the columns `KNOWN` says."""
    return Condition(**{name: getattr(row, name) for name in _FIELDS})


def still(column: str, most: str) -> str:
    """The SQL of whether the instant `column` is to come; one that is further away than `most` is of another clock."""
    return sql(__file__, "still", column=column, most=most)


def _seconds_until(column: str, most: str) -> str:
    return sql(__file__, "seconds_until", column=column, still=still(column, most))


_FIELDS = tuple(field.name for field in fields(Condition))

# The columns of a destination that its condition is made of, and `name`, `failing_since`, `failing_for`, `last_error`.
KNOWN = sql(
    __file__,
    "known",
    open_for=_seconds_until("open_until", OPEN),
    probed_for=_seconds_until("probe_until", PROBED),
    paused_for=_seconds_until("paused_until", PAUSED),
    next_for=_seconds_until("next_at", NEXT),
)

_CONDITIONS = sql(__file__, "conditions", known=KNOWN)
