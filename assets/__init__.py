"""What the platform knows: the assets of a month, the checks that judge them, the board, the outbox.

An asset here reads its configuration, calls the business and shows what came of it; what it does is in
`ticketflow_orch`, and when it runs in `schedules` and `sensors`.
"""

from assets.closed_books import BOOKS_CHECKS, closed_books
from assets.explanation import explain_job, explanation
from assets.monthly_settlement import monthly_settlement
from assets.months_board import months_board
from assets.outbox import outbox, outbox_is_delivered
from assets.payouts import PAYOUT_CHECKS, payouts
from assets.settlement_checks import SETTLEMENT_CHECKS
from assets.settlement_statements import settlement_statements, statements_add_up

# All that is judged about money.
CHECKS = [*SETTLEMENT_CHECKS, *BOOKS_CHECKS, *PAYOUT_CHECKS, statements_add_up]

__all__ = [
    "BOOKS_CHECKS",
    "CHECKS",
    "PAYOUT_CHECKS",
    "SETTLEMENT_CHECKS",
    "closed_books",
    "explain_job",
    "explanation",
    "monthly_settlement",
    "months_board",
    "outbox",
    "outbox_is_delivered",
    "payouts",
    "settlement_statements",
    "statements_add_up",
]
