"""Freezing a month's ledger, giving it back, and closing it for good: one transaction each, under the same locks.

Another run that closes the month at the same time waits at these, and then finds what was done.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, Engine

from ticketflow_orch.closing.invariants import has_balances, missing_balances
from ticketflow_orch.closing.turn import require_next
from ticketflow_orch.db.engine import transaction
from ticketflow_orch.months import Month
from ticketflow_orch.periods.state import (
    PeriodState,
    begin_closing,
    end_closing,
    lock_period,
    lock_periods,
    take_back_closing,
)
from ticketflow_orch.settlement.invariants import Finding


class IncompleteClosingError(RuntimeError):
    """The month is not closed after this run; the message says why, and closing it again goes on from here."""


@dataclass(frozen=True, slots=True)
class Closer:
    """Who closes a month: the name that was declared, and the Dagster run."""

    name: str
    run_id: str


def freeze(engine: Engine, month: Month, now: datetime, first_month: Month) -> None:
    """Freeze the ledger of `month`: from here on whatever is posted into it is refused.

    Waits for those who are posting. A month that another run has begun to close is left as it is.

    Raises:
        PreconditionFailed: see `require_next`.
    """
    with transaction(engine) as connection:
        lock_periods(connection)
        if not require_next(connection, month, now, first_month).is_frozen:
            begin_closing(connection, month)


def give_back(engine: Engine, month: Month) -> None:
    """Let postings into `month` again; a month of which balances have been written stays frozen."""
    with transaction(engine) as connection:
        lock_periods(connection)
        if lock_period(connection, month) is PeriodState.CLOSING and not has_balances(connection, month):
            take_back_closing(connection, month)


def finish(engine: Engine, month: Month, closer: Closer) -> Finding:
    """Close the month unless a balance is missing; returns those that are."""
    with transaction(engine) as connection:
        # So that organizations are parked or unparked before the month is closed, or after. Both locks in the order in
        # which a settlement ends.
        connection.exec_driver_sql("LOCK TABLE parked_organization IN SHARE MODE")
        lock_periods(connection)
        missing = missing_balances(connection, month)
        if is_being_closed(connection, month) and not missing.count:
            connection.exec_driver_sql(_LEFT_OUT, {"month": month.first_day})
            end_closing(connection, month, closer.name, closer.run_id)
        return missing


def is_being_closed(connection: Connection, month: Month) -> bool:
    """Whether there is something left to close; the month's state then stays for as long as the transaction lasts.

    Raises:
        IncompleteClosingError: another run has found that the month is not fit, and let postings into it again.
    """
    state = lock_period(connection, month)
    if not state.is_frozen:
        raise IncompleteClosingError(f"{month} is not being closed any more; close it again.")
    return state is PeriodState.CLOSING


# By name, so that no later comparison of two clocks has to find out who was parked at this moment.
_LEFT_OUT = """
    INSERT INTO organization_left_out (month, organization_id)
    SELECT DISTINCT %(month)s::date, organization_id FROM parked_organization AS parked
    WHERE parked.month <= %(month)s::date AND resolved_at IS NULL AND NOT EXISTS (
        SELECT FROM organization_balance AS balance
        WHERE balance.organization_id = parked.organization_id AND balance.month = %(month)s::date)
"""
