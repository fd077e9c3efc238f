"""Which month may be closed, and its way through the states: settled, being closed, closed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, Engine

from ticketflow_orch.closing.checks import missing_balances
from ticketflow_orch.db.engine import transaction
from ticketflow_orch.errors import InvalidInput
from ticketflow_orch.months import Month
from ticketflow_orch.periods.state import (
    PeriodState,
    before_the_books,
    begin_closing,
    end_closing,
    last_closed,
    lock_period,
    lock_periods,
    period_state,
    take_back_closing,
)
from ticketflow_orch.settlement.checks import Finding
from ticketflow_orch.settlement.due import months_over


class IncompleteClosingError(RuntimeError):
    """The month is not closed after this run; the message says why, and closing it again goes on from here."""


@dataclass(frozen=True, slots=True)
class Closer:
    """Who closes a month: the name that was declared, and the Dagster run."""

    name: str
    run_id: str


def next_to_close(connection: Connection, now: datetime, first_month: Month) -> Month | None:
    """The month whose turn it is: after the last closed one, else the first with movements or a settlement.

    `now` is the business time (aware): a month that is not over has no turn. None: it is nobody's.
    """
    closed = last_closed(connection)
    if closed is not None:
        return closed.next()
    return next(iter(months_over(connection, now, first_month)), None)


def months_to_close(connection: Connection, now: datetime, first_month: Month) -> Iterator[Month]:
    """The months that may be closed one after the other, by their states; what they hold is judged by the closing."""
    month = next_to_close(connection, now, first_month)
    while month is not None and _why_not(connection, month) is None:
        yield month
        month = month.next()


def require_next(connection: Connection, month: Month, now: datetime, first_month: Month) -> None:
    """Raise TicketflowError unless it is the turn of `month` and its state allows to close it."""
    require_turn(connection, month, now, first_month)
    why_not = _why_not(connection, month)
    if why_not is not None:
        raise InvalidInput(why_not)


def require_turn(connection: Connection, month: Month, now: datetime, first_month: Month) -> None:
    """Raise TicketflowError unless it is the turn of `month`, whatever its state."""
    turn = next_to_close(connection, now, first_month)
    if turn is not None and turn < month:
        state = period_state(connection, turn)
        raise InvalidInput(f"{turn} is {state}, and months are closed in order; close it before {month}.")
    why_not = before_the_books(connection, month)
    if why_not is not None:
        raise InvalidInput(why_not)


def _why_not(connection: Connection, month: Month) -> str | None:
    state = period_state(connection, month)
    if state not in {PeriodState.SETTLED, PeriodState.CLOSING}:
        return f"{month} is {state}; settle it, then close it."
    running = connection.exec_driver_sql(
        "SELECT pass FROM settlement_pass WHERE month = %(month)s AND state = 'RUNNING'", {"month": month.first_day}
    ).scalar_one_or_none()
    if running is not None:
        return f"{month} is being settled by its pass {running}; let it end or settle {month} again, then close it."
    return None


def begin(engine: Engine, month: Month, now: datetime, first_month: Month) -> None:
    """Freeze the ledger of `month`: from here on whatever is posted into it is refused.

    Waits for whoever is posting. A month that another run has begun to close is left as it is.

    Raises:
        InvalidInput: see `require_next`.
    """
    with transaction(engine) as connection:
        lock_periods(connection)
        if not period_state(connection, month).is_frozen:
            require_next(connection, month, now, first_month)
            begin_closing(connection, month)


def take_back(engine: Engine, month: Month) -> None:
    """Let postings into `month` again; a month of which balances have been written stays frozen."""
    with transaction(engine) as connection:
        lock_periods(connection)
        if lock_period(connection, month) is PeriodState.CLOSING and not has_balances(connection, month):
            take_back_closing(connection, month)


def has_balances(connection: Connection, month: Month) -> bool:
    """Whether a balance of `month` is written: it was found fit then, and its closing can only be finished."""
    return bool(
        connection.exec_driver_sql(
            "SELECT EXISTS (SELECT FROM organization_balance WHERE month = %(month)s)", {"month": month.first_day}
        ).scalar_one()
    )


def is_being_closed(connection: Connection, month: Month) -> bool:
    """Whether there is something left to close; its state then stays for as long as the transaction lasts.

    Raises:
        IncompleteClosingError: another run has found that the month is not fit, and let postings into it again.
    """
    state = lock_period(connection, month)
    if not state.is_frozen:
        raise IncompleteClosingError(f"{month} is not being closed any more; close it again.")
    return state is PeriodState.CLOSING


def end(engine: Engine, month: Month, closer: Closer) -> Finding:
    """Close the month unless a balance is missing; returns those that are."""
    with transaction(engine) as connection:
        # So that whoever is parked or unparked at this moment is so before the month is closed, or after. Both locks in
        # the order in which a settlement ends.
        connection.exec_driver_sql("LOCK TABLE parked_organization IN SHARE MODE")
        lock_periods(connection)
        missing = missing_balances(connection, month)
        if is_being_closed(connection, month) and not missing.count:
            connection.exec_driver_sql(_LEFT_OUT, {"month": month.first_day})
            end_closing(connection, month, closer.name, closer.run_id)
        return missing


# By name, so that no later comparison of two clocks has to find out who was parked at this moment.
_LEFT_OUT = """
    INSERT INTO organization_left_out (month, organization_id)
    SELECT DISTINCT %(month)s::date, organization_id FROM parked_organization AS parked
    WHERE parked.month <= %(month)s::date AND resolved_at IS NULL AND NOT EXISTS (
        SELECT FROM organization_balance AS balance
        WHERE balance.organization_id = parked.organization_id AND balance.month = %(month)s::date)
"""
