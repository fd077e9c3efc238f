"""How the outbox is doing: what waits, for how long, and what only a person can get on its way."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection

from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.formatting.ages import written_out
from ticketflow_orch.formatting.counts import counted

MOST = 100_000


@dataclass(frozen=True, slots=True)
class Backlog:
    """The events that have not ended, at the instant `at` of the database's clock; at most `MOST` are counted.

    `due_since`: when the oldest of them became due, whatever it waits for; None: none is. `retried`: those that have
    failed for an hour and are tried again. `failing`: the destinations at which nothing arrives, since when, and what
    was said last.
    """

    at: datetime
    due_since: datetime | None
    waiting: int
    dead: int
    in_doubt: int
    held: int
    retried: int = 0
    failing: tuple[tuple[str, datetime, str], ...] = ()

    @property
    def oldest_age(self) -> float:
        """For how many seconds the oldest event has been due."""
        return 0.0 if self.due_since is None else max(0.0, (self.at - self.due_since).total_seconds())


def read_backlog(connection: Connection) -> Backlog:
    """The backlog now: one index probe a type, and one for each event that is counted."""
    found = connection.exec_driver_sql(_BACKLOG).mappings().one()
    failing = tuple((row.name, row.failing_since, row.last_error or "") for row in connection.exec_driver_sql(_FAILING))
    return Backlog(**found, retried=connection.exec_driver_sql(_RETRIED).scalar_one(), failing=failing)


def faults(backlog: Backlog, late: timedelta) -> tuple[str, ...]:
    """A line for each thing that is wrong, naming the value and what to look at. `late`: how long is too long."""
    found = []
    if backlog.oldest_age > late.total_seconds():
        age = written_out(timedelta(seconds=backlog.oldest_age))
        found.append(
            f"the oldest event has been due for {age}; is the relay running, or something held, dead or stopped "
            "before it (`ticketflow outbox list`, `ticketflow outbox stops`)?"
        )
    for name, since, error in backlog.failing:
        if backlog.at - since > late:
            age = written_out(backlog.at - since)
            found.append(f"nothing has arrived at {name} for {age} ({error}); see `ticketflow outbox destinations`.")
    if backlog.retried:
        events = counted(backlog.retried, "event")
        found.append(f"{events} failed for an hour and more; `ticketflow outbox list --state pending` says why.")
    for number, state, way in (
        (backlog.dead, "DEAD", "redrive or resolve"),
        (backlog.in_doubt, "IN_DOUBT", "resolve"),
    ):
        if number:
            events = counted(number, "event")
            found.append(f"{events} {state}; {way} what `ticketflow outbox list --state {state.lower()}` shows.")
    return tuple(found)


_BACKLOG = sql(__file__, "backlog", most=MOST)

# Where nothing waits at all, nothing will say that it arrives again.
_FAILING = """
    SELECT name, failing_since, last_error FROM delivery_destination
    WHERE failing_since IS NOT NULL AND EXISTS (SELECT FROM outbox_event WHERE ended_at IS NULL)
"""

_RETRIED = sql(__file__, "retried", most=MOST)
