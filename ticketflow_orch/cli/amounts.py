"""The amounts of a row as cells of a table: which there are, what their columns are called, how they are written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

BALANCE = ("opening", "net", "returned", "settled_elsewhere", "due", "payable", "closing")
LINE = ("captures", "refunds", "chargebacks", "fees", "commission", "commission_tax")
ENTRY = (*LINE, "net")


class HasExponent(Protocol):
    """A row whose amounts are in minor units of one currency."""

    @property
    def exponent(self) -> int:
        """The decimals of its currency."""


def headings(names: Sequence[str]) -> tuple[str, ...]:
    """What the columns of these amounts are called."""
    return tuple(name.replace("_", " ") for name in names)


def cells(row: HasExponent, names: Sequence[str]) -> tuple[str, ...]:
    """These amounts of `row`, in units of its currency."""
    from ticketflow_orch.formatting.money import written_out

    return tuple(written_out(getattr(row, name), row.exponent) for name in names)
