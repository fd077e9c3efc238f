"""The books: what each organization is owed when a month is over, carried from month to month, closed for good.

Here: closing a month, what its balances hold, and what is decided about them, such as another currency. Settling comes
before (`settlement`), paying what is owed after (`payouts`); what state a month is in is said by `periods.state`.
"""

from ticketflow_orch.closing.close import ClosedBooks, ClosingOptions, close_month
from ticketflow_orch.closing.freeze import IncompleteClosingError

__all__ = ["ClosedBooks", "ClosingOptions", "IncompleteClosingError", "close_month"]
