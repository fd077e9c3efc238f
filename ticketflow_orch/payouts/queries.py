"""Payouts to look at: one by one, and a month's by currency. Nothing here changes any."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, Row

from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.errors import InvalidInput
from ticketflow_orch.months import Month
from ticketflow_orch.payouts.actions import reference_of
from ticketflow_orch.payouts.events import EVENT_KEY
from ticketflow_orch.payouts.model import PayoutState
from ticketflow_orch.payouts.references import shares


@dataclass(frozen=True, slots=True)
class Payout:
    """A payout as people see it; `amount` in minor units.

    `delivery`: the state of its event, None where none was written or it is no longer kept; `attempts` and `last_error`
    are the event's too. `returned_month`: with whose balance its money came back. `run_id` wrote it. `shares`: another
    payout is confirmed under the same reference of the provider.
    """

    reference: str
    organization: str
    month: Month
    currency: str
    exponent: int
    amount: int
    state: PayoutState
    reason: str | None
    provider_ref: str | None
    decided_by: str | None
    created_at: datetime
    first_attempt_at: datetime | None
    answered_at: datetime | None
    returned_month: Month | None
    run_id: str | None
    shares: bool
    delivery: str | None
    attempts: int
    last_error: str | None


@dataclass(frozen=True, slots=True)
class CurrencyPaid:
    """A month's payouts in a currency: how many and how much (minor units), and how much of it in which state."""

    currency: str
    exponent: int
    payouts: int
    amount: int
    held: int
    waiting: int
    confirmed: int
    back: int
    in_doubt: int


def payouts(
    connection: Connection,
    *,
    month: Month | None = None,
    currency: str | None = None,
    state: str | None = None,
    organization: str | None = None,
    limit: int = 100,
) -> tuple[Payout, ...]:
    """The last `limit` payouts that are all of what is given, the newest first.

    Raises:
        InvalidInput: `state` is none that a payout can be in.
    """
    if state is not None and state not in set(PayoutState):
        known = ", ".join(PayoutState).lower()
        raise InvalidInput(f"{state.lower()!r} is no state of a payout; choose one of {known}.")
    rows = connection.exec_driver_sql(
        _LIST,
        {
            "month": month and month.first_day,
            "currency": currency,
            "state": state,
            "organization": organization,
            "limit": limit,
        },
    )
    return tuple(map(_payout, rows))


def payout(connection: Connection, reference: str) -> Payout:
    """The payout called `reference`.

    Raises:
        InvalidInput: there is none.
    """
    row = connection.exec_driver_sql(_SHOW, {"reference": reference_of(reference)}).one_or_none()
    if row is None:
        raise InvalidInput(f"There is no payout {reference}; `ticketflow payouts list` shows their references.")
    return _payout(row)


def paid_by_currency(connection: Connection, month: Month) -> tuple[CurrencyPaid, ...]:
    """The payouts of `month` by currency, as they stand."""
    rows = connection.exec_driver_sql(_BY_CURRENCY, {"month": month.first_day})
    return tuple(
        CurrencyPaid(
            row.currency,
            row.exponent,
            row.payouts,
            amount=int(row.amount),
            held=int(row.held),
            waiting=int(row.waiting),
            confirmed=int(row.confirmed),
            back=int(row.back),
            in_doubt=int(row.in_doubt),
        )
        for row in rows
    )


def requested_so_far(connection: Connection, last: Month) -> dict[str, dict[Month, int]]:
    """Per currency, what each month up to `last` asks for, in minor units; what is held or came back included."""
    found: dict[str, dict[Month, int]] = {}
    for row in connection.exec_driver_sql(_SO_FAR, {"month": last.first_day}):
        found.setdefault(row.currency, {})[Month.of_day(row.month)] = int(row.amount)
    return found


def confirmed_payouts(connection: Connection) -> int:
    """How many payouts are confirmed, of all months."""
    return int(connection.exec_driver_sql(_CONFIRMED).scalar_one())


def _payout(row: Row[tuple[object, ...]]) -> Payout:
    values = dict(row._mapping)
    returned = values["returned_month"]
    values |= {
        "reference": str(row.reference),
        "state": PayoutState(row.state),
        "month": Month.of_day(row.month),
        "returned_month": returned and Month.of_day(row.returned_month),
    }
    return Payout(**values)


_PAYOUTS = sql(__file__, "payouts", event_key=EVENT_KEY, shares=shares("payout"))

_LIST = sql(__file__, "list", payouts=_PAYOUTS)

_SHOW = sql(__file__, "show", payouts=_PAYOUTS)

_BY_CURRENCY = sql(__file__, "by_currency")

_SO_FAR = """
    SELECT currency, month, sum(amount) AS amount FROM payout WHERE month <= %(month)s::date GROUP BY 1, 2
"""

_CONFIRMED = "SELECT count(*) FROM payout WHERE state = 'CONFIRMED'"
