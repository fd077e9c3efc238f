"""Which columns an explained month is shown in; `explain` reads it.

What people ask first comes first: pages cut wide tables off at the right.
"""

from __future__ import annotations

from ticketflow_orch.formatting.columns import BALANCE_AMOUNTS, Column, amounts, counts, percent, words
from ticketflow_orch.formatting.money import written_out
from ticketflow_orch.months import to_the_minute
from ticketflow_orch.reports.explain import Balance, Entry, Line, Movement
from ticketflow_orch.settlement.posting import AMOUNTS

_PARTS = amounts(*(name for name in AMOUNTS if name != "net"))

BALANCES: tuple[Column[Balance], ...] = (
    Column("currency", lambda balance: balance.currency),
    *amounts(*BALANCE_AMOUNTS),
    Column("payout", lambda balance: words(balance.paid or "")),
)

LINES: tuple[Column[Line], ...] = (
    Column("currency", lambda line: line.currency),
    Column("rate", lambda line: percent(line.commission_rate_bps), "amount"),
    Column("tax", lambda line: percent(line.commission_tax_bps), "amount"),
    *_PARTS,
)


def entries(timezone: str) -> tuple[Column[Entry], ...]:
    """The columns of ledger entries, instants as the clock of `timezone` has them."""
    return (
        Column("posted in", lambda entry: str(entry.month)),
        Column("currency", lambda entry: entry.currency),
        *amounts("net"),
        Column("reason", lambda entry: entry.reason or "settlement"),
        *_PARTS,
        *counts("sequence"),
        Column(f"posted ({timezone})", lambda entry: to_the_minute(entry.posted_at, timezone)),
    )


def movements(timezone: str) -> tuple[Column[Movement], ...]:
    """The columns of movements, instants as the clock of `timezone` has them."""
    return (
        Column(f"occurred ({timezone})", lambda movement: to_the_minute(movement.occurred_at, timezone)),
        Column("kind", lambda movement: words(movement.kind) + (" (void)" if movement.is_void else "")),
        Column("amount", lambda movement: written_out(movement.amount, movement.exponent), "amount"),
        Column("currency", lambda movement: movement.currency),
        Column("rate", lambda movement: percent(movement.commission_rate_bps), "amount"),
        Column("reference", lambda movement: movement.external_ref),
        Column("reverses", lambda movement: movement.reverses or ""),
        Column("late", lambda movement: "late" if movement.late else ""),
    )
