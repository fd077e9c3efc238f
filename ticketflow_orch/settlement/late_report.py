"""What came late, as people read it: all that a settlement posted about a month that was settled before.

Which pass takes it in, `late_movements` decides; `posting` posts it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.months import Month
from ticketflow_orch.periods.state import FROZEN_MONTHS, LEDGER_MONTHS
from ticketflow_orch.settlement.posting import Pass
from ticketflow_orch.settlement.queries import UNREAD, unread_bounds


@dataclass(frozen=True, slots=True)
class LateAdjustment:
    """One adjustment: posted in `month`, about `origin`, whose net it changed from `old` to `new` (minor units)."""

    external_ref: str
    name: str
    currency: str
    exponent: int
    month: Month
    origin: Month
    old: int
    new: int
    posted_at: datetime

    @property
    def difference(self) -> int:
        """By how much it changed the net."""
        return self.new - self.old


@dataclass(frozen=True, slots=True)
class LateAdjustments:
    """The first adjustments, the latest months first, and how many there are altogether."""

    listed: tuple[LateAdjustment, ...]
    count: int

    @property
    def more(self) -> int:
        """How many are not listed."""
        return self.count - len(self.listed)


@dataclass(frozen=True, slots=True)
class LateMoney:
    """What came late for a settled or closed month and is not posted yet: how many movements, their sum (minor units).

    `posted_in`: the month whose next settlement posts it. `altogether`: how many of these there are, listed or not.
    """

    external_ref: str
    origin: Month
    posted_in: Month
    currency: str
    exponent: int
    movements: int
    amount: int
    altogether: int


def late_money(connection: Connection, month: Month | None = None, limit: int = 100) -> tuple[LateMoney, ...]:
    """What waits to be posted, in `month` or in any, of which `limit` are listed: what `status` counts as late."""
    rows = connection.exec_driver_sql(
        _WAITING, unread_bounds(connection) | {"month": month and month.first_day, "limit": limit}
    )
    return tuple(
        LateMoney(
            row.external_ref, Month.of_day(row.month), Month.of_day(row.posted_in), row.currency, row.exponent,
            row.movements, int(row.amount), row.altogether,
        )
        for row in rows
    )  # fmt: skip


def late_adjustments(connection: Connection, month: Month | None = None, limit: int = 100) -> LateAdjustments:
    """The adjustments posted in `month`, or in any month, of which `limit` are listed."""
    return _listed(connection, month, None, limit)


def late_in_pass(connection: Connection, settlement: Pass, limit: int = 100) -> LateAdjustments:
    """The adjustments that one pass posted, of which `limit` are listed."""
    return _listed(connection, settlement.month, settlement.number, limit)


def _listed(connection: Connection, month: Month | None, number: int | None, limit: int) -> LateAdjustments:
    day = None if month is None else month.first_day
    rows = connection.exec_driver_sql(_ADJUSTMENTS, {"month": day, "pass": number, "limit": limit}).all()
    listed = tuple(
        LateAdjustment(
            row.external_ref, row.name, row.currency, row.exponent, Month.of_day(row.month),
            Month.of_day(row.origin_month), int(row.old), int(row.old) + row.net, row.posted_at,
        )
        for row in rows
    )  # fmt: skip
    return LateAdjustments(listed, rows[0].adjustments if rows else 0)


_WAITING = sql(__file__, "waiting", unread=UNREAD, frozen_months=FROZEN_MONTHS)

_ADJUSTMENTS = sql(__file__, "adjustments", ledger_months=LEDGER_MONTHS)
