"""How far each month is: open, settled, being closed, closed, paid, stated. The only place with SQL on its table.

Who may move a month on, and why not, is decided in `settlement`, `closing`, `payouts` and `statements`. Where a larger
statement needs the periods of months it takes one of the parts at the end, `sql(__file__, …, books=CLOSED_MONTHS)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum

from sqlalchemy import Connection

from ticketflow_orch.db.sql_files import Statement, sql
from ticketflow_orch.months import Month


class PeriodState(StrEnum):
    """The states of a month, in their order; from CLOSING it goes back to SETTLED where it turns out not to be fit."""

    OPEN = "OPEN"
    SETTLED = "SETTLED"
    CLOSING = "CLOSING"
    CLOSED = "CLOSED"

    @property
    def is_frozen(self) -> bool:
        """Whether the database refuses postings into such a month."""
        return self in {PeriodState.CLOSING, PeriodState.CLOSED}


@dataclass(frozen=True, slots=True)
class Period:
    """How far `month` is, since when; `read_to`: all movements about it below that id were read by a finished pass."""

    month: Month
    state: PeriodState
    settled_at: datetime | None
    closed_at: datetime | None
    paid_at: datetime | None
    stated_at: datetime | None
    read_to: int | None


@dataclass(frozen=True, slots=True)
class Closing:
    """Who closed a month and when: the declared name, and the role by which the database knew them."""

    by: str
    role: str
    at: datetime


# --- What state months are in


def period_state(connection: Connection, month: Month) -> PeriodState:
    """The state of `month`; one that nobody has touched is OPEN."""
    found = connection.exec_driver_sql(
        "SELECT state FROM settlement_period WHERE month = %(month)s", {"month": month.first_day}
    ).scalar_one_or_none()
    return PeriodState(found or PeriodState.OPEN)


def read_periods(connection: Connection) -> tuple[Period, ...]:
    """Every month that a settlement has touched, in order."""
    rows = connection.exec_driver_sql(
        """
            SELECT month, state, settled_at, closed_at, paid_at, stated_at, read_to
            FROM settlement_period ORDER BY month
        """
    )
    return tuple(
        Period(**row._asdict() | {"month": Month.of_day(row.month), "state": PeriodState(row.state)}) for row in rows
    )


def months_in(connection: Connection, *states: PeriodState) -> tuple[Month, ...]:
    """The months in one of `states`, in order; of OPEN ones those that a settlement has touched."""
    days = connection.exec_driver_sql(
        "SELECT month FROM settlement_period WHERE state = ANY (%(states)s::text[]) ORDER BY month",
        {"states": [state.value for state in states]},
    ).scalars()
    return tuple(map(Month.of_day, days))


def touched_months(connection: Connection) -> tuple[Month, ...]:
    """All months that a settlement has touched, in order: the ledger has entries of no others."""
    return months_in(connection, *PeriodState)


def open_months(connection: Connection) -> tuple[Month, ...]:
    """The months that are settled and into which anything may still be posted: who is new there gets a row."""
    return months_in(connection, PeriodState.SETTLED)


def settled_months(connection: Connection) -> tuple[Month, ...]:
    """The months that are settled and not closed: those whose entries may still be wrong and may still be fixed."""
    return months_in(connection, PeriodState.SETTLED, PeriodState.CLOSING)


def closed_months(connection: Connection) -> tuple[Month, ...]:
    """All months whose books are closed, in order."""
    return months_in(connection, PeriodState.CLOSED)


def last_closed(connection: Connection) -> Month | None:
    """The last month whose books are closed; months are closed in order, so nothing is posted up to it."""
    day = connection.exec_driver_sql("SELECT max(month) FROM settlement_period WHERE state = 'CLOSED'").scalar_one()
    return None if day is None else Month.of_day(day)


def month_being_closed(connection: Connection) -> Month | None:
    """The month whose closing has begun and has not ended, if there is one: there is no other."""
    day = connection.exec_driver_sql("SELECT min(month) FROM settlement_period WHERE state = 'CLOSING'").scalar_one()
    return None if day is None else Month.of_day(day)


def takes_postings(connection: Connection, month: Month) -> bool:
    """Whether anything may be posted in `month`: neither it nor a later one is closed or being closed."""
    return not connection.exec_driver_sql(
        "SELECT EXISTS (SELECT FROM settlement_period WHERE month >= %(month)s AND state IN ('CLOSING', 'CLOSED'))",
        {"month": month.first_day},
    ).scalar_one()


def before_the_books(connection: Connection, month: Month) -> str | None:
    """Why nothing ever happens in `month`, in one sentence: it lies before the first that was closed. None: it may."""
    row = connection.exec_driver_sql(
        "SELECT min(month) AS first, max(month) AS last FROM settlement_period WHERE state IN ('CLOSING', 'CLOSED')"
    ).one()
    if row.first is None or month.first_day >= row.first:
        return None
    return (
        f"{month} lies before {Month.of_day(row.first)}, with which the books begin, so it is never settled, closed or "
        f"paid; what comes late for it is adjusted in {Month.of_day(row.last).next()}."
    )


def why_nothing_is_posted(connection: Connection, month: Month) -> str | None:
    """Why a settlement of `month` posts nothing, whatever came late, in one sentence; None: it may."""
    if takes_postings(connection, month):
        return None
    return before_the_books(connection, month) or (
        f"{month} takes nothing any more: the month is closed, or is being closed, so nothing was posted; what comes "
        "late for it is adjusted in the first open month."
    )


# --- When months came where they are


def ready_since(connection: Connection, month: Month) -> datetime | None:
    """Since when `month` has been in the state it is in: settled, or closed; None while it is open."""
    since: datetime | None = connection.exec_driver_sql(
        "SELECT coalesce(closed_at, settled_at) FROM settlement_period WHERE month = %(month)s",
        {"month": month.first_day},
    ).scalar_one_or_none()
    return since


def paid_at(connection: Connection, month: Month) -> datetime | None:
    """When all payouts of `month` were requested; None while they are not."""
    at: datetime | None = connection.exec_driver_sql(
        "SELECT paid_at FROM settlement_period WHERE month = %(month)s", {"month": month.first_day}
    ).scalar_one_or_none()
    return at


def settled_before(connection: Connection, instant: datetime) -> tuple[Month, ...]:
    """The months that were settled before `instant` (aware), whatever became of them since."""
    days = connection.exec_driver_sql(
        "SELECT month FROM settlement_period WHERE settled_at < %(instant)s ORDER BY month", {"instant": instant}
    ).scalars()
    return tuple(map(Month.of_day, days))


def is_read(connection: Connection, month: Month, boundary: int) -> bool:
    """Whether `month` is settled with all that was recorded about it below the movement id `boundary`."""
    found = connection.exec_driver_sql(
        """
            SELECT EXISTS (
                SELECT FROM settlement_period
                WHERE month = %(month)s AND state <> 'OPEN' AND read_to >= %(boundary)s::bigint)
        """,
        {"month": month.first_day, "boundary": boundary},
    ).scalar_one()
    return bool(found)


def closing_of(connection: Connection, month: Month) -> Closing:
    """Who closed `month`, which must be closed."""
    row = connection.exec_driver_sql(
        """
            SELECT closed_by AS by, closed_role AS role, closed_at AS at FROM settlement_period
            WHERE month = %(month)s
        """,
        {"month": month.first_day},
    ).one()
    return Closing(**row._asdict())


# --- Locks


def lock_periods(connection: Connection) -> None:
    """Let no pass begin or end, and no month be moved on, until this transaction has ended.

    A pass began before, and is then seen, or begins after and sees what has become of the month. Taken before any row
    of the table, so that a session that waits for a row here holds nothing that its owner needs.
    """
    connection.exec_driver_sql("LOCK TABLE settlement_period IN SHARE ROW EXCLUSIVE MODE")


def lock_period(connection: Connection, month: Month) -> PeriodState:
    """The state of `month`, which has a period; it stays for as long as the transaction lasts.

    A statement by itself: the next one sees what the one who held the period before has written.
    """
    return PeriodState(
        connection.exec_driver_sql(
            "SELECT state FROM settlement_period WHERE month = %(month)s FOR UPDATE", {"month": month.first_day}
        ).scalar_one()
    )


# --- Moving a month on


def touch(connection: Connection, month: Month) -> None:
    """Give `month` a period, which is OPEN, unless it has one; no closing begins until the transaction has ended."""
    connection.exec_driver_sql(
        "INSERT INTO settlement_period (month) VALUES (%(month)s) ON CONFLICT DO NOTHING", {"month": month.first_day}
    )


def mark_read(connection: Connection, month: Month, closed_through: date | None, cutoff: int) -> None:
    """Note that all movements below `cutoff` about `month`, and about the months up to `closed_through`, were read."""
    connection.exec_driver_sql(
        """
            UPDATE settlement_period SET read_to = %(cutoff)s::bigint
            WHERE (month = %(month)s::date OR month <= %(through)s::date)
                AND (read_to IS NULL OR read_to < %(cutoff)s::bigint)
        """,
        {"month": month.first_day, "through": closed_through, "cutoff": cutoff},
    )


def mark_settled(connection: Connection, month: Month, by: str) -> bool:
    """Move an OPEN month to SETTLED; whether this call did it."""
    moved = connection.exec_driver_sql(
        """
            UPDATE settlement_period SET state = 'SETTLED', settled_at = clock_timestamp(), settled_by = %(who)s
            WHERE month = %(month)s AND state = 'OPEN'
        """,
        {"month": month.first_day, "who": by},
    ).rowcount
    return bool(moved)


def begin_closing(connection: Connection, month: Month) -> None:
    """Move a SETTLED month to CLOSING: from the commit on whatever is posted into it is refused."""
    connection.exec_driver_sql(
        "UPDATE settlement_period SET state = 'CLOSING' WHERE month = %(month)s", {"month": month.first_day}
    )


def take_back_closing(connection: Connection, month: Month) -> None:
    """Move a CLOSING month back to SETTLED; the database refuses that once balances of it are written."""
    connection.exec_driver_sql(
        "UPDATE settlement_period SET state = 'SETTLED' WHERE month = %(month)s AND state = 'CLOSING'",
        {"month": month.first_day},
    )


def end_closing(connection: Connection, month: Month, by: str, run_id: str) -> None:
    """Move a CLOSING month to CLOSED, for good, and note who did it, beside the role that the database knows."""
    connection.exec_driver_sql(_END_CLOSING, {"month": month.first_day, "by": by, "run_id": run_id})


def marking_paid(is_paid: str) -> Statement:
    """The statement that notes a CLOSED month (bind `month`) as paid, where `is_paid` holds of its row `period`."""
    return sql(__file__, "mark_paid", is_paid=is_paid)


def marking_unpaid(is_owed: str) -> Statement:
    """The statement that takes that back of all months of whose row `period` the condition `is_owed` holds."""
    return sql(__file__, "mark_unpaid", is_owed=is_owed)


def mark_stated(connection: Connection, month: Month) -> None:
    """Note that all statements of a CLOSED month are issued, unless that stands there already."""
    connection.exec_driver_sql(
        """
            UPDATE settlement_period SET stated_at = clock_timestamp()
            WHERE month = %(month)s AND state = 'CLOSED' AND stated_at IS NULL
        """,
        {"month": month.first_day},
    )


_END_CLOSING = sql(__file__, "end_closing")

# --- Parts for larger statements: each a query without binds, for a FROM, an IN or an EXISTS; all are inlined.

# Columns month, state, settled_at, closed_at, paid_at, stated_at, read_to: every month that a settlement has touched.
PERIODS = sql(__file__, "periods")

# Column month: those whose books are closed.
CLOSED_MONTHS = sql(__file__, "closed_months")

# Column month: the one whose closing has begun and has not ended, or none.
CLOSING_MONTH = sql(__file__, "closing_month")

# Column month: those that take no postings any more, closed or being closed.
FROZEN_MONTHS = sql(__file__, "frozen_months")

# Column month: those that the ledger may have entries of, to join it to.
LEDGER_MONTHS = sql(__file__, "ledger_months")

# Columns month, read_to: up to which movement id a finished pass has read what is about the month.
READ_MONTHS = sql(__file__, "read_months")
