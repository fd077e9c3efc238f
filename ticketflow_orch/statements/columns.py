"""Which columns the tables of statements have, in files and in the UI: one row per organization and currency.

They are the same in the same order, for ever: new ones come last. How each kind of file writes a value is in `tables`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ticketflow_orch.formatting.columns import BALANCE_AMOUNTS, Column, amounts, counts

if TYPE_CHECKING:
    from ticketflow_orch.statements.model import Statement
    from ticketflow_orch.statements.writing import CurrencyTotal

AMOUNT = "decimal(38,4)"


@dataclass(frozen=True, slots=True)
class StatementColumn:
    """One column: its name, the type of its values in the Parquet file (see `tables`), and what it says."""

    name: str
    type: str
    about: str


COLUMNS = (
    StatementColumn("month", "date", "the closed month, by its first day"),
    StatementColumn("organization", "string", "the organization's reference"),
    StatementColumn("name", "string", "the organization's name"),
    StatementColumn("timezone", "string", "IANA zone of its months"),
    StatementColumn("covers_from", "timestamp", "UTC; earlier than the month where it was parked before"),
    StatementColumn("covers_until", "timestamp", "UTC; the end of the month, which is not in it any more"),
    StatementColumn("currency", "string", "ISO 4217"),
    StatementColumn("exponent", "int16", "the currency's number of decimals"),
    StatementColumn("opening", AMOUNT, "the closing of the balance before, in major units like all amounts"),
    StatementColumn("captures", AMOUNT, "ticket sales"),
    StatementColumn("refunds", AMOUNT, "negative"),
    StatementColumn("chargebacks", AMOUNT, "reversals included"),
    StatementColumn("fees", AMOUNT, "fees and manual entries"),
    StatementColumn("commission", AMOUNT, "what was charged, so positive as a rule"),
    StatementColumn("commission_tax", AMOUNT, "tax on the commission"),
    StatementColumn("adjustments", AMOUNT, "net of what came late for months of earlier statements"),
    StatementColumn("net", AMOUNT, "captures + refunds + chargebacks + fees − commission − tax + adjustments"),
    StatementColumn("returned", AMOUNT, "payouts that came back"),
    StatementColumn("due", AMOUNT, "opening + net + returned − settled elsewhere"),
    StatementColumn("payable", AMOUNT, "due where it reaches the currency's minimum and is paid, else 0"),
    StatementColumn("closing", AMOUNT, "due − payable, the next opening"),
    StatementColumn("settled_elsewhere", AMOUNT, "what is about months before the first that is paid here"),
)

# What the statements of a month come to, by currency.
TOTALS: tuple[Column[CurrencyTotal], ...] = (
    Column("currency", lambda total: total.currency),
    *counts("statements"),
    *amounts(*BALANCE_AMOUNTS),
)


def values(statement: Statement) -> tuple[Any, ...]:
    """The row of a statement, a value for each of `COLUMNS`, amounts in minor units."""
    party, own = statement.party, statement.own
    return (
        statement.month.first_day, party.external_ref, party.name, party.timezone, statement.starts_at,
        statement.ends_at, statement.currency, statement.exponent,
        statement.opening, own.captures, own.refunds, own.chargebacks, own.fees, own.commission, own.commission_tax,
        statement.adjustments.net, statement.net, statement.returned, statement.due, statement.payable,
        statement.closing, statement.settled_elsewhere,
    )  # fmt: skip
