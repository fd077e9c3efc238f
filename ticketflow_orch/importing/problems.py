"""What is wrong with an import, row by row: all counted by kind, the first hundred kept, and all written if asked."""

from __future__ import annotations

import heapq
import os
import pickle
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TextIO, cast

from sqlalchemy import Connection

from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.errors import InvalidInput
from ticketflow_orch.formatting.counts import counted
from ticketflow_orch.formatting.csv_files import Writer
from ticketflow_orch.formatting.output_files import ordinary_file

SHOWN = 100
_LONGEST_VALUE = 200
# Of what is kept on disk, so much stays in memory until there is more.
_IN_MEMORY = 1 << 20  # bytes

# Number of the kind, line, number of the column.
Order = tuple[int, int, int]
Found = tuple[Order, "Problem"]


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


@dataclass(frozen=True, slots=True)
class ProblemCount:
    """How many problems there are of one kind; `reason` is without what differs from row to row."""

    file: str
    column: str
    reason: str
    count: int


class ImportRefused(InvalidInput):
    """Rows are bad, so nothing was imported. `problems` are the first hundred in order, `count` is how many there are.

    `summary` counts all of them by kind, the most frequent first. The message is a sentence, and the problems one a
    line.
    """

    def __init__(self, problems: tuple[Problem, ...], count: int, summary: tuple[ProblemCount, ...]) -> None:
        self.problems = problems
        self.count = count
        self.summary = summary
        shown = f" (the first {len(problems)} are listed)" if count > len(problems) else ""
        sentence = (
            f"Nothing was imported: {counted(count, 'problem')}{shown}. Fix the files and import the folder again."
        )
        super().__init__("\n".join([sentence, *(f"  {problem}" for problem in problems)]))


class ProblemFile:
    """Writes all problems to a CSV file, those that are found one by one before the others in a row."""

    def __init__(self, file: TextIO, spool: IO[bytes]) -> None:
        self._spool = spool
        self._writer = Writer(file)
        self._writer.writerow(("file", "line", "column", "value", "reason"))

    def keep(self, found: Found) -> None:
        """Keep a problem until all are written."""
        pickle.dump(found, self._spool)

    def write(self, others: Iterator[Found]) -> None:
        """Write the problems that were kept, and `others`, in order."""
        for _, problem in heapq.merge(self._kept(), others, key=_order):
            self._writer.writerow((problem.file, problem.line, problem.column, problem.value, problem.reason))

    def _kept(self) -> Iterator[Found]:
        # Kind by kind and row by row, as they were read.
        self._spool.seek(0)
        with suppress(EOFError):
            while True:
                yield pickle.load(self._spool)  # noqa: S301 - written by us, above


class Findings:
    """The problems of one import as they are found, in whatever order; memory stays bounded however many come.

    Those of cells are found here, those of rows by the database, which keeps them in a temporary table. `file` gets all
    of them before the import is refused.
    """

    def __init__(self, connection: Connection, file: ProblemFile | None = None) -> None:
        self._connection = connection
        self._file = file
        self._counted: Counter[tuple[str, str, str]] = Counter()
        self._kept: list[Found] = []
        connection.exec_driver_sql(_TABLE)

    def note(self, problem: Problem, order: Order) -> None:
        """Count one problem, which belongs at `order`."""
        found = order, replace(problem, value=_shortened(problem.value))
        self._counted[problem.file, problem.column, problem.reason] += 1
        self._kept.append(found)
        if len(self._kept) > 10 * SHOWN:
            self._kept = sorted(self._kept, key=_order)[:SHOWN]
        if self._file is not None:
            self._file.keep(found)

    def note_found_by(self, query: str, kind: int, file: str) -> bool:
        """Count what `query` finds, rows of line, position, column, value and reason; returns whether it found any."""
        note = sql(__file__, "note", query=query)
        return self._connection.exec_driver_sql(note, {"kind": kind, "file": file}).rowcount > 0

    def refuse_any(self) -> None:
        """Raise ImportRefused unless nothing was found."""
        for row in self._connection.exec_driver_sql(_SUMMARY):
            self._counted[row.file, row.column, row.reason] += row.number
        if not self._counted:
            return
        if self._file is not None:
            self._file.write(self._rows())
        first = sorted([*self._kept, *self._rows(SHOWN)], key=_order)[:SHOWN]
        summary = tuple(ProblemCount(*kind, count) for kind, count in self._counted.most_common())
        raise ImportRefused(tuple(problem for _, problem in first), self._counted.total(), summary)

    def _rows(self, most: int | None = None) -> Iterator[Found]:
        rows = self._connection.exec_driver_sql(_ROWS, {"most": most}, execution_options={"yield_per": 1_000})
        for row in rows:
            yield (
                (row.kind, row.line, row.position),
                Problem(row.file, row.line, row.column, _shortened(row.value or ""), row.reason),
            )


@contextmanager
def problems_file(path: Path | None) -> Iterator[ProblemFile | None]:
    """A file for the problems of one import, in its place once the block has judged all rows; None without a path.

    Raises:
        InvalidInput: it cannot be written; before anything else is done.
    """
    if path is None:
        yield None
        return
    place = ordinary_file(path)
    draft = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        file = draft.open("w", encoding="utf-8", newline="")
    except OSError as error:
        raise InvalidInput(f"The file {path} cannot be written ({error.strerror}); name another one.") from None
    try:
        with file, tempfile.SpooledTemporaryFile(_IN_MEMORY) as spool:
            try:
                yield ProblemFile(file, cast(IO[bytes], spool))
            except ImportRefused:
                file.flush()
                draft.replace(place)
                raise
        draft.replace(place)
    finally:
        draft.unlink(missing_ok=True)


def _order(found: Found) -> Order:
    return found[0]


def _shortened(value: str) -> str:
    return value if len(value) <= _LONGEST_VALUE else f"{value[:_LONGEST_VALUE]}…"


_TABLE = """
    CREATE TEMP TABLE found_problem (
        kind integer, line bigint, position integer, file text, "column" text, value text, reason text
    ) ON COMMIT DROP
"""

_SUMMARY = sql(__file__, "summary")

_ROWS = "SELECT * FROM found_problem ORDER BY kind, line, position LIMIT %(most)s::bigint"
