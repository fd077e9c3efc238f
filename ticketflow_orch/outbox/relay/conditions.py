"""How each destination does, as all relays know it: whether it fails, how long it is left alone, what it takes."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

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
    return {row.name: Condition(*row[:7]) for row in connection.exec_driver_sql(_CONDITIONS)}


def still(column: str, most: str) -> str:
    """The SQL of whether the instant `column` is to come; one that is further away than `most` is of another clock."""
    return f"({column} > clock_timestamp() AND {column} < clock_timestamp() + interval '{most}')"


def _until(column: str, most: str) -> str:
    left = f"extract(epoch FROM {column} - clock_timestamp())"
    return f"CAST(CASE WHEN {still(column, most)} THEN {left} ELSE 0 END AS float)"


_KNOWN = f"""
    failing_since IS NOT NULL, open_until IS NOT NULL, {_until("open_until", OPEN)},
    {_until("probe_until", PROBED)}, {_until("paused_until", PAUSED)}, CAST(rate AS float), {_until("next_at", NEXT)},
    name, failing_since, CAST(extract(epoch FROM clock_timestamp() - failing_since) AS float) AS failing_for, last_error
"""

RETURNING = f"RETURNING {_KNOWN}"

_CONDITIONS = sql(__file__, "conditions", known=_KNOWN)
