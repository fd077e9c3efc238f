"""What goes into the cells of the CSV files that people open: exact amounts, and text that no spreadsheet runs."""

from __future__ import annotations

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def plain(text: str) -> str:
    """`text` for a cell of a CSV file, with an apostrophe before what a spreadsheet would run as a formula."""
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def exact(minor_units: int, exponent: int) -> str:
    """An amount in major units: a dot, all decimals of its currency, nothing between thousands."""
    sign = "-" if minor_units < 0 else ""
    whole, fraction = divmod(abs(minor_units), 10**exponent)
    return f"{sign}{whole}" + (f".{fraction:0{exponent}d}" if exponent else "")
