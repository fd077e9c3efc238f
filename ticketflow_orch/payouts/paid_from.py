"""From which month on organizations are paid, the installation's or their own: read, and changed by people.

Months before it are history, settled elsewhere; where there is none, payouts are off and what is due is carried. A
change is kept with who made it, takes effect with the next month that is closed, and changes no closed one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg.errors import InsufficientPrivilege
from sqlalchemy import Connection, Engine, Row
from sqlalchemy.exc import ProgrammingError

from ticketflow_orch.closing.history import moved, pays_from, pays_from_of
from ticketflow_orch.db.engine import transaction
from ticketflow_orch.db.errors import is_a
from ticketflow_orch.db.installation import read_installation
from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.errors import PreconditionFailed, UnknownOrganization
from ticketflow_orch.formatting.counts import counted
from ticketflow_orch.formatting.money import written_out
from ticketflow_orch.months import Month
from ticketflow_orch.periods.state import PERIODS, lock_periods, marking_unpaid, month_being_closed

OWN_SHOWN = 100


@dataclass(frozen=True, slots=True)
class Sum:
    """An amount in one currency (minor units), and how many organizations it is about."""

    currency: str
    exponent: int
    organizations: int
    amount: int

    def __str__(self) -> str:
        amount = f"{written_out(self.amount, self.exponent)} {self.currency}"
        return f"{amount} of {counted(self.organizations, 'organization')}"


@dataclass(frozen=True, slots=True)
class Own:
    """An organization with a month of its own, and when and by whom it was changed; None: it came with it."""

    organization: str
    payouts_from: Month
    changed_at: datetime | None
    changed_by: str | None


@dataclass(frozen=True, slots=True)
class PaidFrom:
    """From when on people are paid: `everybody` is the installation's month, None while payouts are off.

    `own`: organizations with a month of their own, the first hundred of `own_count`.
    """

    everybody: Month | None
    own: tuple[Own, ...]
    own_count: int

    def __str__(self) -> str:
        off = "payouts are off" if self.everybody is None else f"payouts begin with {self.everybody}"
        return off + (f"; {counted(self.own_count, 'organization')} with a month of its own" if self.own_count else "")


class UnconfirmedError(PreconditionFailed):
    """What closed months owe would be paid from `month` on; `pays` says how much, and nothing is changed."""

    def __init__(self, month: Month, pays: tuple[Sum, ...]) -> None:
        super().__init__(
            f"From {month} on, closed months pay {in_words(pays)}, with the payouts that are due and the next month "
            "that is closed; confirm it by --yes."
        )
        self.month = month
        self.pays = pays


def read_paid_from(connection: Connection) -> PaidFrom:
    """From when on people are paid."""
    rows = connection.exec_driver_sql(_OWN, {"most": OWN_SHOWN}).all()
    return PaidFrom(
        everybody=read_installation(connection).payouts_from,
        own=tuple(
            Own(row.external_ref, Month.of_day(row.payouts_from), row.changed_at, row.changed_by) for row in rows
        ),
        own_count=rows[0].total if rows else 0,
    )


def first_paid_month(connection: Connection) -> Month | None:
    """The first month that anybody is paid for, if anybody is; cheap, whatever the tables hold."""
    day = connection.exec_driver_sql(_EARLIEST).scalar_one()
    return None if day is None else Month.of_day(day)


def waiting(connection: Connection) -> tuple[Sum, ...]:
    """What closed months owe organizations for which payouts are off, by currency.

    That which balances from before carried were off counted as paid is among it.
    """
    return _sums(connection.exec_driver_sql(_WAITING))


def comes_off(connection: Connection) -> tuple[Sum, ...]:
    """What the next closing takes off of closed months, as settled elsewhere, since a later month was set."""
    return _sums(connection.exec_driver_sql(_COMES_OFF))


def paid_of_closed(connection: Connection, month: Month | None, organization: str | None = None) -> tuple[Sum, ...]:
    """What closed months pay once everybody, or `organization`, is paid from `month` on, and not before that."""
    values = {"month": None if month is None else month.first_day, "organization": organization}
    return _sums(connection.exec_driver_sql(_PAYS, values))


def judged(connection: Connection, by: str) -> None:
    """Say, for the caller's transaction, that a change of these months was judged, and who decided it.

    Without it the database refuses one where books are closed.
    """
    connection.exec_driver_sql(_JUDGED, {"by": by})


def set_paid_from(
    engine: Engine,
    month: Month | None,
    by: str,
    *,
    organization: str | None = None,
    confirmed: bool | tuple[Sum, ...] = False,
) -> None:
    """Pay from `month` on; None: turn payouts off or, for one `organization` (its reference), pay it as all others.

    `confirmed`: a person agrees to what it pays of closed months, be it whatever it is or just these sums.

    Raises:
        UnconfirmedError: it would pay what closed months owe, and that was not confirmed.
        InvalidInput: there is no such organization.
        PreconditionFailed: it is so already; months before were paid already, or are about to be; a month is being
            closed; the role of the database may not change it.
    """
    values = {
        "month": None if month is None else month.first_day,
        "organization": organization,
        "by": by,
    }
    with _allowed(), transaction(engine) as connection:
        # A closing that begins later sees the change, and none is running.
        lock_periods(connection)
        _require_change(connection, month, organization)
        _require_no_closing(connection)
        _require_unpaid(connection.exec_driver_sql(_PAID_ALREADY, values).one_or_none())
        pays = paid_of_closed(connection, month, organization)
        # Where one organization is to be paid as all others, they are paid if it is.
        begins = month or read_installation(connection).payouts_from
        if begins and pays and confirmed is not True and confirmed != pays:
            raise UnconfirmedError(begins, pays)
        judged(connection, by)
        connection.exec_driver_sql(_SET if organization is None else _SET_OWN, values)
        if pays:
            connection.exec_driver_sql(_PAID_NO_MORE)


@contextmanager
def _allowed() -> Iterator[None]:
    try:
        yield
    except ProgrammingError as error:
        if not is_a(error, InsufficientPrivilege):
            raise
        raise PreconditionFailed(
            "The role that this process carries may not change from when on people are paid; run it as the owner of "
            "the schema."
        ) from error


def in_words(sums: Iterable[Sum]) -> str:
    """The sums as part of a sentence."""
    return ", ".join(map(str, sums))


def _require_change(connection: Connection, month: Month | None, organization: str | None) -> None:
    if organization is None:
        before, whose = read_installation(connection).payouts_from, "payouts"
    else:
        row = connection.exec_driver_sql(_ORGANIZATION, {"organization": organization}).one_or_none()
        if row is None:
            raise UnknownOrganization(organization)
        before = None if row.payouts_from is None else Month.of_day(row.payouts_from)
        whose = f"payouts of {organization}"
    if before != month:
        return
    if month is not None:
        raise PreconditionFailed(f"The {whose} begin with {month} already; nothing is changed.")
    if organization is None:
        raise PreconditionFailed(
            "Payouts are off already; name the first month that is paid, such as 2026-03, to turn them on."
        )
    raise PreconditionFailed(f"Organization {organization} has no month of its own; nothing is changed.")


def _require_no_closing(connection: Connection) -> None:
    month = month_being_closed(connection)
    if month is not None:
        raise PreconditionFailed(
            f"{month} is being closed; let that end by `ticketflow close {month}`, then change it."
        )


def _require_unpaid(row: Row[Any] | None) -> None:
    if row is None:
        return
    month = Month.of_day(row.month)
    amount = f"{written_out(row.payable, row.exponent)} {row.currency}"
    if row.state is None:
        raise PreconditionFailed(
            f"{month} is closed and owes {row.external_ref} {amount}, which is not requested yet; materialize payouts "
            f"for {month} first, after `ticketflow payouts pause` if nothing is to be sent."
        )
    raise PreconditionFailed(
        f"The payout of {amount} to {row.external_ref} for {month} is {row.state}, so {month} was not settled "
        "elsewhere; choose that month or an earlier one, or reject the payout before it is sent."
    )


def _sums(rows: Iterable[Row[Any]]) -> tuple[Sum, ...]:
    return tuple(Sum(row.currency, row.exponent, row.organizations, int(row.amount)) for row in rows)


_OWN = sql(__file__, "own")

_EARLIEST = sql(__file__, "earliest")

_WAITING = sql(__file__, "waiting", periods=PERIODS, pays_from=pays_from())

_ORGANIZATION = """
    SELECT payouts_from FROM organization WHERE external_ref = %(organization)s::text FOR NO KEY UPDATE
"""

_MEMBER = sql(__file__, "member", pays_from=pays_from())

_PAID_ALREADY = sql(__file__, "paid_already", member=_MEMBER)

_PAYS = sql(__file__, "pays", periods=PERIODS, member=_MEMBER, moved=moved("earlier", "earlier.last_month"))

_COMES_OFF = sql(__file__, "comes_off", pays_from=pays_from(), moved=moved("member", "member.last_month"))

_JUDGED = "SELECT set_config('ticketflow.changed_by', %(by)s::text, true)"

_SET = "UPDATE installation SET payouts_from = %(month)s::date, changed_by = %(by)s::text"

_SET_OWN = "UPDATE organization SET payouts_from = %(month)s::date WHERE external_ref = %(organization)s::text"

# Of a row `period` of PERIODS: whether balances that are to be paid have no payout.
UNREQUESTED = sql(__file__, "unrequested", pays_from=pays_from_of("balance.organization_id"))

_PAID_NO_MORE = marking_unpaid(UNREQUESTED)
