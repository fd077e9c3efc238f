"""Whose turn it is: which month may be closed by now. That it is then closed is the work of `close`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from sqlalchemy import Connection

from ticketflow_orch.errors import PreconditionFailed
from ticketflow_orch.months import Month
from ticketflow_orch.periods.state import PeriodState, before_the_books, last_closed, period_state
from ticketflow_orch.settlement.due import months_over
from ticketflow_orch.settlement.passes import running_pass


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
    while month is not None and _why_not(connection, month, period_state(connection, month)) is None:
        yield month
        month = month.next()


def require_turn(connection: Connection, month: Month, now: datetime, first_month: Month) -> PeriodState:
    """Refuse to close `month` out of its turn; returns the state it is in, whatever that allows.

    Raises:
        PreconditionFailed: an earlier month comes first, or `month` lies before the books. Not asked of a month that
            is closed or being closed.
    """
    state = period_state(connection, month)
    if not state.is_frozen:
        turn = next_to_close(connection, now, first_month)
        if turn is not None and turn < month:
            raise PreconditionFailed(
                f"{turn} is {period_state(connection, turn)}, and months are closed in order; close it before {month}."
            )
        why_not = before_the_books(connection, month)
        if why_not is not None:
            raise PreconditionFailed(why_not)
    return state


def require_next(connection: Connection, month: Month, now: datetime, first_month: Month) -> PeriodState:
    """Refuse to close `month` unless it is its turn and its state allows that; returns the state it is in.

    Raises:
        PreconditionFailed: see `require_turn`; or the month is not settled, or is being settled again.
    """
    state = require_turn(connection, month, now, first_month)
    why_not = None if state.is_frozen else _why_not(connection, month, state)
    if why_not is not None:
        raise PreconditionFailed(why_not)
    return state


def _why_not(connection: Connection, month: Month, state: PeriodState) -> str | None:
    if state not in {PeriodState.SETTLED, PeriodState.CLOSING}:
        return f"{month} is {state}; settle it, then close it."
    running = running_pass(connection, month)
    if running is not None:
        return (
            f"{month} is being settled by its pass {running.number}; let it end or settle {month} again, then close it."
        )
    return None
