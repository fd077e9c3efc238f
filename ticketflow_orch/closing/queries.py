"""What closed books say, read for people: sums by month and currency, who was left out, who closed them."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from ticketflow_orch.months import Month
from ticketflow_orch.periods.state import Closing, closing_of
from ticketflow_orch.settlement.queries import ParkedOrganization

_PARKED_SHOWN = 100
_AMOUNTS = ("opening", "net", "returned", "settled_elsewhere", "due", "payable", "closing")


@dataclass(frozen=True, slots=True)
class CurrencyBalance:
    """The balances of `month` in one currency: exact sums in minor units; `exponent` is the currency's.

    `organizations`: how many have a balance; `paying`: how many of them have something to be paid; `carrying`: how many
    carry an amount into the next month.
    """

    month: Month
    currency: str
    exponent: int
    organizations: int
    paying: int
    carrying: int
    opening: int
    net: int
    returned: int
    settled_elsewhere: int
    due: int
    payable: int
    closing: int


@dataclass(frozen=True, slots=True)
class Books:
    """What the books of a closed month say: sums by currency, who has no balance (the first hundred), who closed it."""

    balances: tuple[CurrencyBalance, ...]
    parked: tuple[ParkedOrganization, ...]
    closing: Closing


def read_books(connection: Connection, month: Month) -> Books:
    """The books of `month`, which must be closed."""
    return Books(
        balance_totals(connection, month, month),
        organizations_left_out(connection, month),
        closing_of(connection, month),
    )


def balance_totals(connection: Connection, first: Month, last: Month) -> tuple[CurrencyBalance, ...]:
    """The sums of the months from `first` to `last` that have balances, by month and currency."""
    rows = connection.exec_driver_sql(_TOTALS, {"first": first.first_day, "last": last.first_day})
    return tuple(
        CurrencyBalance(
            month=Month.of_day(row.month),
            currency=row.currency,
            exponent=row.exponent,
            organizations=row.organizations,
            paying=row.paying,
            carrying=row.carrying,
            # Sums of amounts come as numeric: they may be larger than any amount.
            **{name: int(getattr(row, name)) for name in _AMOUNTS},
        )
        for row in rows
    )


def payable_so_far(connection: Connection, last: Month) -> dict[str, dict[Month, int]]:
    """Per currency, what the closed months up to `last` pay, in minor units."""
    found: dict[str, dict[Month, int]] = {}
    for total in balance_totals(connection, Month(1970, 1), last):
        found.setdefault(total.currency, {})[total.month] = total.payable
    return found


def organizations_left_out(connection: Connection, month: Month) -> tuple[ParkedOrganization, ...]:
    """The organizations that were parked when `month` was closed and have no balance of it, the first hundred."""
    rows = connection.exec_driver_sql(_LEFT_OUT, {"month": month.first_day, "limit": _PARKED_SHOWN})
    return tuple(ParkedOrganization(row.external_ref, Month.of_day(row.month), row.why, row.since) for row in rows)


_TOTALS = """
    SELECT month, balance.currency, exponent, count(*) AS organizations,
        count(*) FILTER (WHERE payable > 0) AS paying, count(*) FILTER (WHERE closing <> 0) AS carrying,
        sum(opening) AS opening, sum(net) AS net, sum(returned) AS returned,
        sum(settled_elsewhere) AS settled_elsewhere, sum(due) AS due, sum(payable) AS payable, sum(closing) AS closing
    FROM organization_balance AS balance JOIN currency ON code = balance.currency
    WHERE month BETWEEN %(first)s AND %(last)s
    GROUP BY month, balance.currency, exponent
    ORDER BY month, balance.currency
"""

_LEFT_OUT = """
    SELECT DISTINCT ON (organization.id) external_ref, parked.month, coalesce(error, reason) AS why, since
    FROM parked_organization AS parked
    JOIN organization ON organization.id = parked.organization_id
    JOIN organization_left_out AS left_out ON left_out.organization_id = organization.id AND left_out.month = %(month)s
    WHERE parked.month <= %(month)s
    ORDER BY organization.id, resolved_at IS NOT NULL, parked.month
    LIMIT %(limit)s
"""
