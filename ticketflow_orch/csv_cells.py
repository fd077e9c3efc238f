"""What goes into the cells of the CSV files that people open: exact amounts, and text that no spreadsheet runs."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


class Writer:
    """Writes rows to a CSV file whose lines end with a line feed; a cell with any kind of line end is quoted."""

    def __init__(self, file: TextIO) -> None:
        # The csv module quotes those line ends that its own lines have; so it is given both, and one is left out.
        self._file = file
        self._writer = csv.writer(self, lineterminator="\r\n")

    def writerow(self, row: Sequence[Any]) -> None:
        """Write one row."""
        self._writer.writerow(row)

    def writerows(self, rows: Iterable[Sequence[Any]]) -> None:
        """Write many rows."""
        self._writer.writerows(rows)

    def write(self, line: str) -> None:
        """Take a line from the csv module."""
        self._file.write(f"{line[:-2]}\n")


def plain(text: str) -> str:
    """`text` for a cell of a CSV file, with an apostrophe before what a spreadsheet would run as a formula."""
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def exact(minor_units: int, exponent: int) -> str:
    """An amount in major units: a dot, all decimals of its currency, nothing between thousands."""
    sign = "-" if minor_units < 0 else ""
    whole, fraction = divmod(abs(minor_units), 10**exponent)
    return f"{sign}{whole}" + (f".{fraction:0{exponent}d}" if exponent else "")
