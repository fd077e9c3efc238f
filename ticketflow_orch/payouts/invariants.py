"""What must hold for payouts, as questions to the database: read-only, answered for all months at once."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from typing import Any

from sqlalchemy import Connection, Row

from ticketflow_orch.closing.history import pays_from_of
from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.months import Month
from ticketflow_orch.payouts.paid_from import first_paid_month
from ticketflow_orch.periods.state import PERIODS, closed_months
from ticketflow_orch.settlement.invariants import EVERYBODY, EXAMPLES, Breach, Finding, Members


def not_as_payable(connection: Connection, members: Members = EVERYBODY) -> tuple[Finding, ...]:
    """Per month, balances whose payable has no payout or another amount, and payouts without a balance.

    Asked about the closed months that pay anybody and should be paid by now: those up to the last one with payouts,
    and those that were closed more than three days ago. What was closed since is not forgotten but not paid yet.
    """
    first = first_paid_month(connection)
    if first is None:
        return ()
    values = {"first": first.first_day, "most": EXAMPLES} | members.parameters()
    judged = connection.exec_driver_sql(_MONTHS, values).scalars()
    return _findings(judged, connection.exec_driver_sql(_NOT_AS_PAYABLE, values))


def in_doubt(connection: Connection, members: Members = EVERYBODY) -> tuple[Finding, ...]:
    """Per closed month, payouts of which nobody knows whether they left."""
    closed = (month.first_day for month in closed_months(connection))
    return _findings(closed, connection.exec_driver_sql(_IN_DOUBT, {"most": EXAMPLES} | members.parameters()))


def _findings(judged: Iterable[date], rows: Iterable[Row[Any]]) -> tuple[Finding, ...]:
    by_month: dict[date, list[Row[Any]]] = {day: [] for day in judged}
    for row in rows:
        by_month[row.month].append(row)
    return tuple(
        Finding(
            Month.of_day(day),
            bad[0].breaches if bad else 0,
            tuple(Breach(row.external_ref, row.currency, row.what) for row in bad),
        )
        for day, bad in by_month.items()
    )


_EXAMPLES = sql(__file__, "examples")

_MONTHS = sql(__file__, "judged_months", periods=PERIODS)

_NOT_AS_PAYABLE = sql(
    __file__, "not_as_payable", months=_MONTHS, pays_from=pays_from_of("organization_id"), examples=_EXAMPLES
)

_IN_DOUBT = sql(__file__, "in_doubt", examples=_EXAMPLES)
