"""What is wrong with an import, row by row: all of it counted, the first hundred kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ticketflow_orch.counts import counted
from ticketflow_orch.errors import InputError

SHOWN = 100
_LONGEST_VALUE = 200


@dataclass(frozen=True, slots=True)
class Problem:
    """One bad cell, or one bad row where `column` is empty.

    `line` is the line of the file on which the row starts, the header being line 1; in a Parquet file it is the row's
    number, from 1. `value` is what stands there, shortened when it is long, empty for an empty cell; an instant that is
    well-formed is given in UTC.
    """

    file: str
    line: int
    column: str
    value: str
    reason: str

    def __str__(self) -> str:
        place = ", ".join(part for part in (self.file, f"line {self.line}", self.column) if part)
        return f"{place}: {self.value!r} {self.reason}"


class ImportRefused(InputError):  # noqa: N818 - a refusal, like the database's
    """Rows are bad, so nothing was imported. `problems` are the first hundred in order, `count` is how many there are.

    The message is a sentence, and the problems one a line.
    """

    def __init__(self, problems: tuple[Problem, ...], count: int) -> None:
        self.problems = problems
        self.count = count
        shown = f" (the first {len(problems)} are listed)" if count > len(problems) else ""
        sentence = (
            f"Nothing was imported: {counted(count, 'problem')}{shown}. Mend the files and import the folder again."
        )
        super().__init__("\n".join([sentence, *(f"  {problem}" for problem in problems)]))


class Findings:
    """The problems of one import as they are found, in whatever order; memory stays bounded however many come."""

    def __init__(self) -> None:
        self.count = 0
        self._kept: list[tuple[tuple[int, int, int], Problem]] = []

    def note(self, problem: Problem, order: tuple[int, int, int]) -> None:
        """Count one problem, which belongs at `order`: number of the kind, line, number of the column."""
        self.note_first([(problem, order)], 1)

    def note_first(self, found: Sequence[tuple[Problem, tuple[int, int, int]]], count: int) -> None:
        """Count `count` problems of which `found` are the first."""
        self.count += count
        self._kept += [
            (order, Problem(problem.file, problem.line, problem.column, _shortened(problem.value), problem.reason))
            for problem, order in found
        ]
        if len(self._kept) > 10 * SHOWN:
            self._cut()

    def refuse_any(self) -> None:
        """Raise ImportRefused unless nothing was found."""
        if self.count:
            self._cut()
            raise ImportRefused(tuple(problem for _, problem in self._kept), self.count)

    def _cut(self) -> None:
        self._kept = sorted(self._kept, key=lambda kept: kept[0])[:SHOWN]


def _shortened(value: str) -> str:
    return value if len(value) <= _LONGEST_VALUE else f"{value[:_LONGEST_VALUE]}…"
