"""Columns of tables that people read. A read model is described once, and terminal, UI and files show it by that.

Which columns a read model has stands beside it in its room; how a table is drawn, where it is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from ticketflow_orch.formatting.money import written_out

# The amounts of a balance, in the order in which they add up.
BALANCE_AMOUNTS = ("opening", "net", "returned", "settled_elsewhere", "due", "payable", "closing")

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """One column: its `name`, its `cell` of a row, and what that is; a terminal sets all but text to the right."""

    name: str
    cell: Callable[[Row], str | int]
    kind: Literal["text", "amount", "count"] = "text"


def amounts(*names: str) -> tuple[Column[Any], ...]:
    """A column for each of these fields of a row, which are minor units; its `exponent` says of how many decimals."""
    return tuple(map(_amount, names))


def counts(*names: str) -> tuple[Column[Any], ...]:
    """A column for each of these fields of a row, which are numbers."""
    return tuple(map(_count, names))


def picked(columns: Sequence[Column[Row]], *names: str) -> tuple[Column[Row], ...]:
    """Those of `columns` that are called so, in this order."""
    by_name = {column.name: column for column in columns}
    return tuple(by_name[name] for name in names)


def header(columns: Sequence[Column[Any]]) -> tuple[str, ...]:
    """The names of `columns`."""
    return tuple(column.name for column in columns)


def cells(columns: Sequence[Column[Row]], row: Row) -> tuple[str | int, ...]:
    """What `columns` show of `row`."""
    return tuple(column.cell(row) for column in columns)


def percent(basis_points: int) -> str:
    """A rate: 1250 is "12.5 %"."""
    return f"{basis_points / 100:g} %"


def words(name: str) -> str:
    """A name of code as people read it: "IN_DOUBT" is "in doubt"."""
    return name.lower().replace("_", " ")


def _amount(name: str) -> Column[Any]:
    return Column(words(name), lambda row: written_out(getattr(row, name), row.exponent), "amount")


def _count(name: str) -> Column[Any]:
    return Column(words(name), lambda row: int(getattr(row, name)), "count")
