"""The months, and how far each is: settled, closed, paid, issued; what came late, who is parked, what is next.

Reading it costs next to nothing, whatever ledger, balances and payouts hold: totals are kept by month, and of payouts
only those that wait for something are counted, by their index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from typing import Any

from sqlalchemy import Connection, Row

from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.formatting.counts import counted
from ticketflow_orch.months import Month
from ticketflow_orch.payouts.events import EVENT_TYPE
from ticketflow_orch.payouts.paid_from import first_paid_month
from ticketflow_orch.periods.state import PERIODS, touched_months
from ticketflow_orch.settlement.anomalies import noted
from ticketflow_orch.settlement.due import due_months
from ticketflow_orch.settlement.queries import MonthTotal, late_organizations, month_totals

MONTHS_SHOWN = 36


class Stage(StrEnum):
    """How far one step of a month is; NONE where the month never has that step."""

    NONE = "none"
    NOT_YET = "not yet"
    IN_PROGRESS = "in progress"
    ATTENTION = "needs a person"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class WaitingPayouts:
    """How many of a month's payouts are not confirmed; `came_back`: rejected or returned, and in no balance yet."""

    held: int
    requested: int
    in_doubt: int
    came_back: int


@dataclass(frozen=True, slots=True)
class BoardMonth:
    """One month: its `state` (OPEN, SETTLED, CLOSING, CLOSED) and the steps that people ask for; `issued`: statements.

    `totals`: what was posted in it, by currency. `late`: adjustments about it, wherever they were posted; `waiting`:
    organizations with late money about it that is not posted yet. `parked`: organizations that are parked in it now.
    `failed`: why its last settlement gave up, if it did. `next_step`: what is to happen next, in a few words; empty:
    nothing.
    """

    month: Month
    state: str
    totals: tuple[MonthTotal, ...]
    late: int
    parked: int
    payouts: WaitingPayouts
    settled: Stage
    closed: Stage
    paid: Stage
    issued: Stage
    next_step: str
    waiting: int = 0
    failed: str | None = None

    @property
    def needs_a_person(self) -> bool:
        """Whether something in it is red, those who are parked aside: they may be so in many months."""
        return Stage.ATTENTION in {self.settled, self.closed, self.paid, self.issued}

    @property
    def organizations(self) -> int:
        """How many have entries in it, counted once per currency."""
        return sum(total.organizations for total in self.totals)


@dataclass(frozen=True, slots=True)
class Board:
    """The last months that are over or that a settlement has touched, in order.

    `payouts_from`: the first month that anybody is paid for; None: payouts are off.
    `anomalies`: how many movements that settlements have read look wrong and were accepted by nobody. `parked`:
    organizations in any month.
    """

    months: tuple[BoardMonth, ...]
    payouts_from: Month | None = None
    anomalies: int = 0
    parked: int = 0

    @property
    def version(self) -> str:
        """Equal for boards that say the same."""
        return sha256(repr(self).encode()).hexdigest()[:16]


def read_board(connection: Connection, now: datetime, first_month: Month) -> Board:
    """The board at the business time `now` (aware)."""
    months = sorted({*touched_months(connection), *due_months(connection, now, first_month)})[-MONTHS_SHOWN:]
    if not months:
        return Board(())
    rows = connection.exec_driver_sql(
        BOARD, {"months": [month.first_day for month in months], "first": months[0].first_day, "event": EVENT_TYPE}
    ).all()
    totals = month_totals(connection, months[0], months[-1])
    payouts_from = first_paid_month(connection)
    waiting = late_organizations(connection)
    turn = next((row for row in rows if row.state != "CLOSED"), None)
    return Board(
        tuple(
            _board_month(
                row,
                tuple(total for total in totals if total.month == month),
                turn,
                waiting=waiting.get(month, 0),
                pays=payouts_from is not None and month >= payouts_from,
            )
            for month, row in zip(months, rows, strict=True)
        ),
        payouts_from,
        noted(connection).count,
        parked=connection.exec_driver_sql(_PARKED).scalar_one(),
    )


def _board_month(
    row: Row[Any], totals: Sequence[MonthTotal], turn: Row[Any] | None, *, waiting: int, pays: bool
) -> BoardMonth:
    payouts = WaitingPayouts(row.held, row.requested, row.in_doubt, row.came_back)
    closed = row.state == "CLOSED"
    return BoardMonth(
        month=Month.of_day(row.month),
        state=row.state,
        totals=tuple(totals),
        late=row.late,
        parked=row.parked,
        payouts=payouts,
        settled=_settled(row),
        closed={"CLOSING": Stage.IN_PROGRESS, "CLOSED": Stage.DONE}.get(row.state, Stage.NOT_YET),
        paid=_paid(row, payouts, pays=pays),
        issued=Stage.DONE if row.issued else Stage.NOT_YET,
        next_step=_next_when_closed(row, payouts, pays=pays) if closed else _next_to_close(row, turn),
        waiting=waiting,
        failed=row.failed,
    )


def _settled(row: Row[Any]) -> Stage:
    if row.settling is not None:
        return Stage.IN_PROGRESS
    if row.failed is not None:
        return Stage.ATTENTION
    return Stage.NOT_YET if row.state == "OPEN" else Stage.DONE


def _paid(row: Row[Any], payouts: WaitingPayouts, *, pays: bool) -> Stage:
    if payouts.in_doubt or payouts.held:
        return Stage.ATTENTION
    if not pays and not row.paid:
        return Stage.NONE
    if payouts.requested:
        return Stage.IN_PROGRESS
    return Stage.DONE if row.paid else Stage.NOT_YET


def _next_to_close(row: Row[Any], turn: Row[Any] | None) -> str:
    if row.state == "CLOSING":
        return "being closed"
    if row.settling is not None:
        return f"being settled, pass {row.settling}"
    if row.failed is not None:
        return "correct what its settlement failed on, and settle it again"
    if row.state == "OPEN":
        return "settle it"
    if turn is not None and turn.month < row.month:
        return f"{'settle' if turn.state == 'OPEN' else 'close'} {Month.of_day(turn.month)} first"
    return "close its books"


def _next_when_closed(row: Row[Any], payouts: WaitingPayouts, *, pays: bool) -> str:
    unanswered = counted(payouts.requested, "payout")
    steps = (
        (payouts.in_doubt, f"resolve {counted(payouts.in_doubt, 'payout')} in doubt"),
        (payouts.held, f"release {counted(payouts.held, 'payout')} held"),
        (pays and not row.paid, "request its payouts"),
        (payouts.requested, f"resume payouts for {unanswered}" if row.paused else f"wait for {unanswered}"),
        (not row.issued, "write its statements"),
        (payouts.came_back, f"take back {counted(payouts.came_back, 'payout')}"),
    )
    return next((step for holds, step in steps if holds), "")


BOARD = sql(__file__, "board", periods=PERIODS)

_PARKED = "SELECT count(DISTINCT organization_id) FROM parked_organization WHERE resolved_at IS NULL"
