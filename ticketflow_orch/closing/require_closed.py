"""The rule that payouts and statements are of closed months only. How a month is closed is in `close`."""

from __future__ import annotations

from sqlalchemy import Connection

from ticketflow_orch.errors import PreconditionFailed
from ticketflow_orch.months import Month
from ticketflow_orch.periods.state import PeriodState, before_the_books, period_state


def require_closed(connection: Connection, month: Month, what_is_wanted: str) -> None:
    """Refuse a month whose books are not closed; `what_is_wanted` ends a sentence: "only closed months are paid".

    Raises:
        PreconditionFailed: they are not; the sentence says what state the month is in.
    """
    state = period_state(connection, month)
    if state is PeriodState.CLOSED:
        return
    why_not = before_the_books(connection, month)
    if why_not is not None:
        raise PreconditionFailed(why_not)
    found = "was never settled" if state is PeriodState.OPEN else f"is {state}"
    raise PreconditionFailed(f"{month} {found}, and {what_is_wanted}; close its books first.")
