"""Which columns the closed books are shown in, by currency; `queries` reads them."""

from __future__ import annotations

from ticketflow_orch.closing.queries import CurrencyBalance
from ticketflow_orch.formatting.columns import BALANCE_AMOUNTS, Column, amounts, counts

BALANCES: tuple[Column[CurrencyBalance], ...] = (
    Column("month", lambda total: str(total.month)),
    Column("currency", lambda total: total.currency),
    *amounts(*BALANCE_AMOUNTS),
    *counts("organizations", "paying", "carrying"),
)
