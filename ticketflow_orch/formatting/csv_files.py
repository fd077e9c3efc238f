"""The CSV files that leave the product, as every spreadsheet and reader takes them: one writer for all.

UTF-8, every cell quoted, lines ended as RFC 4180 has them, so that a line end of any kind inside a cell is part of it
for every reader. A file that people open begins with a byte-order mark, or their spreadsheet takes its letters for
others, and no text in it is run as a formula.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

_BYTE_ORDER_MARK = "\ufeff"
# What a spreadsheet begins a formula with, at the beginning of a cell, of a line in it, or behind what it may take for
# the end of a cell: the list separator is another one from country to country. Blanks and quotes do not count.
_FORMULA = re.compile(r"""(^|[\r\n\v\f\x1c-\x1e\x85\u2028\u2029;,|\t])([\s"]*)([=+\-@＝＋－＠])""")
_LINE_STARTS = ("\t", "\r", "\n")


class Figure(str):
    """Text that is a number: it is written as it stands, also where it begins with a minus."""

    __slots__ = ()


class Writer:
    """Writes rows to a CSV `file`, which translates no line ends (newline="").

    `for_people`: with a byte-order mark, and with an apostrophe before whatever in a text would be run as a formula.
    Numbers and figures are written as they stand.
    """

    def __init__(self, file: TextIO, *, for_people: bool = True) -> None:
        self._writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\r\n")
        self._for_people = for_people
        if for_people:
            file.write(_BYTE_ORDER_MARK)

    def writerow(self, row: Sequence[Any]) -> None:
        """Write one row."""
        self._writer.writerow([plain(cell) for cell in row] if self._for_people else row)

    def writerows(self, rows: Iterable[Sequence[Any]]) -> None:
        """Write many rows."""
        for row in rows:
            self.writerow(row)


def plain(cell: object) -> object:
    """`cell` for a spreadsheet, a text with an apostrophe before whatever would be run as a formula."""
    if not isinstance(cell, str) or isinstance(cell, Figure):
        return cell
    safe = _FORMULA.sub(r"\1\2'\3", cell)
    return f"'{safe}" if safe.startswith(_LINE_STARTS) else safe


def exact(minor_units: int, exponent: int) -> Figure:
    """An amount in major units: a dot, all decimals of its currency, nothing between thousands."""
    sign = "-" if minor_units < 0 else ""
    whole, fraction = divmod(abs(minor_units), 10**exponent)
    return Figure(f"{sign}{whole}" + (f".{fraction:0{exponent}d}" if exponent else ""))
