"""Why an organization's month came to what it came to: lines by rate, movements, what was posted, what is owed.

How it is shown, as columns of tables, is in `explanation_columns`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row

from ticketflow_orch.closing.history import pays_from
from ticketflow_orch.db.installation import business_timezone
from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.errors import PreconditionFailed, UnknownOrganization
from ticketflow_orch.formatting.columns import BALANCE_AMOUNTS
from ticketflow_orch.months import Month, Window
from ticketflow_orch.periods.state import PERIODS, PeriodState, before_the_books, read_periods
from ticketflow_orch.periods.windows import month_windows
from ticketflow_orch.settlement.anomalies import Anomaly, read_anomalies
from ticketflow_orch.settlement.invariants import Members
from ticketflow_orch.settlement.posting import AMOUNTS, LINE, ROUNDED_LINE

_ANOMALIES = 1_000


@dataclass(frozen=True, slots=True)
class Line:
    """The movements of one currency and rate, in minor units; commission and tax are rounded once, here.

    Exact also where no column of the ledger holds them, which is what an organization may be parked for.
    """

    currency: str
    exponent: int
    commission_rate_bps: int
    commission_tax_bps: int
    captures: int
    refunds: int
    chargebacks: int
    fees: int
    commission: int
    commission_tax: int


@dataclass(frozen=True, slots=True)
class Movement:
    """One movement of the month; `late` when no pass has read it, so that it is not posted yet."""

    external_ref: str
    kind: str
    is_void: bool
    reverses: str | None
    currency: str
    exponent: int
    amount: int
    commission_rate_bps: int
    occurred_at: datetime
    late: bool


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the ledger about the month; posted in a later one when `month` differs from what was asked."""

    month: Month
    sequence: int
    currency: str
    exponent: int
    captures: int
    refunds: int
    chargebacks: int
    fees: int
    commission: int
    commission_tax: int
    net: int
    reason: str | None
    posted_at: datetime


@dataclass(frozen=True, slots=True)
class Balance:
    """What the closed books of the month say in one currency, in minor units; `paid`: the state of the payout."""

    currency: str
    exponent: int
    opening: int
    net: int
    returned: int
    settled_elsewhere: int
    due: int
    payable: int
    closing: int
    paid: str | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything about one organization and month. `lines` are all that is known by now, late movements included.

    `balances` are there when the month is closed and the organization is not parked. `payouts_from`: the first month
    that the organization is paid for; None: payouts are off. `anomalies`: what is wrong with movements of the month, or
    with what they reverse, accepted or not.
    """

    external_ref: str
    name: str
    timezone: str
    month: Month
    window: Window
    state: str
    cutoff: datetime | None
    parked: str | None
    lines: tuple[Line, ...]
    movements: tuple[Movement, ...]
    entries: tuple[Entry, ...]
    balances: tuple[Balance, ...]
    payouts_from: Month | None
    anomalies: tuple[Anomaly, ...]
    before_the_books: str | None
    business_timezone: str

    @property
    def not_paid_here(self) -> str | None:
        """Why nothing about the month is paid here, in a sentence."""
        if self.payouts_from is None:
            if any(balance.payable for balance in self.balances):
                return None
            return "Payouts are off: what is due is carried."
        if self.month < self.payouts_from:
            return (
                f"Payouts begin with {self.payouts_from}: what is about this month was settled elsewhere and comes off "
                "the balance that takes it in."
            )
        return None


def explain(connection: Connection, external_ref: str, month: Month) -> Explanation:
    """The explanation of `month` for the organization called `external_ref`.

    Raises:
        InvalidInput: there is no such organization.
    """
    organization = connection.exec_driver_sql(_ORGANIZATION, {"ref": external_ref}).one_or_none()
    if organization is None:
        raise UnknownOrganization(external_ref)
    key = {"organization_id": organization.id, "month": month.first_day}
    window = month_windows(connection, [month], [organization.timezone])[month][organization.timezone]
    state = connection.exec_driver_sql(_STATE, key).one()
    within = {"organization_id": organization.id, "starts_at": window.starts_at, "ends_at": window.ends_at}
    return Explanation(
        external_ref=external_ref,
        name=organization.name,
        timezone=organization.timezone,
        month=month,
        window=window,
        state=state.state or "OPEN",
        cutoff=state.cutoff,
        parked=state.parked,
        lines=tuple(map(_line, connection.exec_driver_sql(_LINES, within))),
        movements=tuple(Movement(**row._mapping) for row in connection.exec_driver_sql(_MOVEMENTS, key | within)),
        entries=tuple(map(_entry, connection.exec_driver_sql(_ENTRIES, key))),
        balances=tuple(Balance(**row._mapping) for row in connection.exec_driver_sql(_BALANCES, key)),
        payouts_from=Month.of_day(organization.payouts_from) if organization.payouts_from else None,
        anomalies=tuple(_anomalies(connection, organization.id, window)),
        before_the_books=before_the_books(connection, month),
        business_timezone=business_timezone(connection),
    )


def _line(row: Row[Any]) -> Line:
    # They are numeric, whatever they hold.
    return Line(**(dict(row._mapping) | {name: int(getattr(row, name)) for name in AMOUNTS[:-1]}))


def _entry(row: Row[Any]) -> Entry:
    return Entry(**(dict(row._mapping) | {"month": Month.of_day(row.month)}))


def _anomalies(connection: Connection, organization: int, window: Window) -> Iterator[Anomaly]:
    every = read_anomalies(connection, members=Members.only(organization), limit=_ANOMALIES, with_accepted=True)
    for one in every.listed:
        instants = (one.occurred_at, one.other_occurred_at)
        if any(at is not None and window.starts_at <= at < window.ends_at for at in instants):
            yield one


def last_settled(connection: Connection) -> Month:
    """The last month that is settled, closed or not: the one that people ask about first.

    Raises:
        PreconditionFailed: there is none.
    """
    settled = [one.month for one in read_periods(connection) if one.state is not PeriodState.OPEN]
    if not settled:
        raise PreconditionFailed("No month is settled yet; name the one to explain, such as 2026-03.")
    return settled[-1]


_ORGANIZATION = sql(__file__, "organization", pays_from=pays_from())

_STATE = sql(__file__, "state", periods=PERIODS)

# An organization that is parked because a column of the ledger cannot hold a sum is explained all the same.
_LINE, _ROUNDED_LINE = (
    of.replace("AS bigint)", "AS numeric)").replace("::bigint", "::numeric") for of in (LINE, ROUNDED_LINE)
)

_LINES = sql(__file__, "lines", line=_LINE, rounded_line=_ROUNDED_LINE, amounts=", ".join(AMOUNTS[:-1]))

_MOVEMENTS = sql(__file__, "movements")

_ENTRIES = sql(__file__, "entries", periods=PERIODS, amounts=", ".join(AMOUNTS))

_BALANCES = sql(__file__, "balances", amounts=", ".join(BALANCE_AMOUNTS))
