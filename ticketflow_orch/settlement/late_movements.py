"""Who can have changed since a month was last read, and which pass takes in what comes late for closed months.

"Since" is a question of order: a movement's id is drawn while its transaction holds the table, and a period's `read_to`
is the id below which a finished pass has read all movements about it. No clock is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.errors import PreconditionFailed
from ticketflow_orch.months import Month, Window, months_between
from ticketflow_orch.periods.state import READ_MONTHS, closed_months, last_closed
from ticketflow_orch.periods.windows import Windows
from ticketflow_orch.settlement.currencies import currency_of


def next_movement_id(connection: Connection) -> int:
    """A value that lies after every movement recorded by now and before all that will be, drawn from their sequence."""
    return int(connection.exec_driver_sql("SELECT nextval('money_movement_id_seq')").scalar_one())


def next_in_order(connection: Connection) -> int:
    """As `next_movement_id`, but refuses a sequence that a hand or a restore set back: its values divide nothing.

    Raises:
        PreconditionFailed: movements, or what was read of them, go beyond what it gives next.
    """
    row = connection.exec_driver_sql(_REACHED).one()
    if row.largest_id >= row.next_id or row.largest_cutoff > row.next_id:
        raise PreconditionFailed(
            f"The sequence money_movement_id_seq gives {row.next_id}, while movements go up to {row.largest_id} and "
            f"were read to {row.largest_cutoff}: what is settled now would lack some. Set it to the larger of both by "
            "setval, then settle again."
        )
    return next_movement_id(connection)


def closed_before(connection: Connection, month: Month) -> Month | None:
    """The last closed month, if `month` is the first that is not closed, and so takes in what came late for all before.

    A month that is being closed takes in nothing and lets nobody else do so: should it turn out not to be fit, what is
    posted about it is still in its own entries alone.
    """
    last = last_closed(connection)
    return last if last is not None and last.next() == month else None


def months_to_watch(
    connection: Connection, month: Month, timezones: list[str], cutoff: int, *, full: bool = False
) -> list[Month]:
    """The months whose late movements a pass of `month` takes in: the closed ones, if it is the first that is not.

    And before them any for which movements came late, or came at all when `full`: nobody had sold anything in those
    when they were closed. Not those that another pass has read beyond `cutoff`, which one that waited for its turn
    while they were settled further may find: it would take back what is posted.
    """
    closed_through = closed_before(connection, month)
    if closed_through is None:
        return []
    closed = {each for each in closed_months(connection) if each <= closed_through}
    months = closed | _months_before(connection, min(closed), timezones, cutoff, full)
    return sorted(month for month, boundary in read_to(connection, months).items() if boundary <= cutoff)


@dataclass(frozen=True, slots=True)
class Unread:
    """What a pass still has to look at: months, each zone's window of each, and up to which movement each was read.

    `own` is the month whose active organizations must each have a row, if one of them is; `cutoff`: movements from
    there on are left to a later pass.
    """

    windows: Windows
    read_to: Mapping[Month, int]
    cutoff: int
    own: Month | None = None

    @classmethod
    def of(
        cls, connection: Connection, windows: Windows, cutoff: int, *, own: Month | None = None, full: bool = False
    ) -> Unread:
        """What is unread in the months of `windows`; all of it when `full`."""
        return cls(windows, read_to(connection, windows, full=full), cutoff, own)

    def parameters(self) -> dict[str, Any]:
        """The parameters that `CHANGED` takes."""
        every = [(month, name, window) for month, zones in self.windows.items() for name, window in zones.items()]
        return {
            "months": [month.first_day for month, _, _ in every],
            "timezones": [name for _, name, _ in every],
            "starts": [window.starts_at for _, _, window in every],
            "ends": [window.ends_at for _, _, window in every],
            "read_months": [month.first_day for month in self.read_to],
            "read_to": list(self.read_to.values()),
            "least": min(self.read_to.values(), default=0),
            "earliest": min((window.starts_at for _, _, window in every), default=None),
            "latest": max((window.ends_at for _, _, window in every), default=None),
            "cutoff": self.cutoff,
            "own": None if self.own is None else self.own.first_day,
            "after_own": None if self.own is None else self.own.next().first_day,
        }


def read_to(connection: Connection, months: Iterable[Month], *, full: bool = False) -> dict[Month, int]:
    """For each of `months` the movement id below which all was read; 0 where no pass has finished, or when `full`."""
    months = sorted(months)
    if full:
        return dict.fromkeys(months, 0)
    rows = connection.exec_driver_sql(
        "SELECT month, settlement_read_to(month) AS read_to FROM unnest(%(months)s::date[]) AS asked (month)",
        {"months": [month.first_day for month in months]},
    )
    return {Month.of_day(row.month): row.read_to for row in rows}


def changed_months(connection: Connection, unread: Unread) -> tuple[Month, ...]:
    """The months of `unread` in which at least one organization can have changed, in order."""
    days = connection.exec_driver_sql(_CHANGED_MONTHS, unread.parameters()).scalars()
    return tuple(sorted(map(Month.of_day, days)))


def _months_before(connection: Connection, first: Month, timezones: list[str], cutoff: int, full: bool) -> set[Month]:
    """The months before the first closed one that movements came late for, or in which somebody is still parked."""
    # An organization in a zone that nobody knows lives between these: what may be older than the books is looked at,
    # and they are parked there, or it would count as read when their zone is known.
    timezones = [*timezones, *_OUTERMOST]
    windows: list[Window] = [first.window(name) for name in timezones]
    row = connection.exec_driver_sql(
        _BEFORE,
        {
            "first": first.first_day,
            "starts_at": max(window.starts_at for window in windows),
            "cutoff": cutoff,
            "least": 0 if full else read_to(connection, [first])[first],
        },
    ).one()
    months = {Month.of_instant(row.oldest, name) for name in timezones} if row.oldest is not None else set()
    months |= {Month.of_day(row.parked)} if row.parked is not None else set()
    return set(months_between(min(months), first.previous())) if months else set()


_REACHED = sql(__file__, "reached", read_months=READ_MONTHS)

# The last zone on earth that begins a month, and the first.
_OUTERMOST = ("Etc/GMT+12", "Pacific/Kiritimati")

_BEFORE = sql(__file__, "before")

# The queries `watched` and `changed` (origin_month, id). Binds are those of `Unread.parameters`.
CHANGED = sql(__file__, "changed", currency=currency_of("%(own)s::date"))

_CHANGED_MONTHS = sql(__file__, "changed_months", changed=CHANGED)

# A WITH that ends in `changed_chunk` (origin_month, low_id, high_id, organizations). Binds: `size` besides.
CHANGED_CHUNKS = sql(__file__, "changed_chunks", changed=CHANGED)

PLAN_CHANGED = sql(__file__, "plan_changed", changed_chunks=CHANGED_CHUNKS)
