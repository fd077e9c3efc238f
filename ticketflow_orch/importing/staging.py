"""Where rows wait until all of them have been judged: temporary tables, filled by COPY, gone with the transaction.

Every staged row draws its id when it arrives, so that rows of one folder can refer to one another before any of them
is inserted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import psycopg
from psycopg import sql
from sqlalchemy import Connection

from ticketflow_orch.importing.format import KINDS, Batch, Column, Kind
from ticketflow_orch.importing.problems import Findings, Problem, ProblemFile

# What is being done, and how many rows of it are done.
Progress = Callable[[str, int], None]
_ROWS_PER_REPORT = 10_000


class Staging:
    """The staged rows of one import, in the transaction of `connection`, and what was found wrong with them."""

    def __init__(
        self, connection: Connection, progress: Progress | None = None, problems: ProblemFile | None = None
    ) -> None:
        self.connection = connection
        self.findings = Findings(connection, problems)
        self.rows = dict.fromkeys(KINDS, 0)
        self.without_rows: list[str] = []
        self.files = {kind: kind.name for kind in KINDS}
        self._progress = progress or (lambda _step, _rows: None)
        for kind in KINDS:
            columns = ", ".join(f"{column.name} {column.type}" for column in kind.columns)
            connection.exec_driver_sql(
                f"CREATE TEMP TABLE staged_{kind.table} (line bigint, faulty boolean,"
                f" id bigint DEFAULT nextval('{kind.table}_id_seq'), {columns}) ON COMMIT DROP"
            )

    def report(self, step: str, rows: int) -> None:
        """Report that `rows` rows of `step` are done."""
        self._progress(step, rows)

    def copy(self, batch: Batch) -> None:
        """Stage the rows of `batch`. A bad cell is noted and staged as NULL, its row marked faulty."""
        kind = batch.kind
        before = self.rows[kind]
        self.files[kind] = batch.file
        columns = [kind.column(name) for name in batch.columns]
        names = sql.SQL(", ").join(map(sql.Identifier, ["line", *batch.columns, "faulty"]))
        table = sql.Identifier(f"staged_{kind.table}")
        with self._driver().cursor().copy(sql.SQL("COPY {} ({}) FROM STDIN").format(table, names)) as copy:
            for line, cells in batch.rows:
                self.rows[kind] += 1
                if self.rows[kind] % _ROWS_PER_REPORT == 0:
                    self.report(f"reading {kind.name}", self.rows[kind])
                if len(cells) != len(columns):
                    self._note(kind, line, "", f"{len(cells)} cells", f"do not fit the header's {len(columns)} columns")
                    continue
                values, faults = _judge(columns, cells)
                for column, value, reason in faults:
                    self._note(kind, line, column, value, reason)
                copy.write_row((line, *values, bool(faults)))
        if self.rows[kind] == before:
            self.without_rows.append(batch.file)
        self.report(f"reading {kind.name}", self.rows[kind])

    def note_rows(self, kind: Kind, query: str) -> bool:
        """Note what a query finds, rows of line, position, column, value and reason; returns whether it found any."""
        return self.findings.note_found_by(query, KINDS.index(kind), self.files[kind])

    def _note(self, kind: Kind, line: int, column: str, value: str, reason: str) -> None:
        problem = Problem(self.files[kind], line, column, value, reason)
        self.findings.note(problem, (KINDS.index(kind), line, kind.position(column)))

    def _driver(self) -> psycopg.Connection:
        return cast(psycopg.Connection, self.connection.connection.driver_connection)


def _judge(
    columns: Sequence[Column], cells: Sequence[str | None]
) -> tuple[list[str | None], list[tuple[str, str, str]]]:
    """The cells as they are staged, NULL for the bad ones, and the bad ones as (column, value, reason)."""
    values: list[str | None] = []
    faults = []
    for column, cell in zip(columns, cells, strict=True):
        if cell:
            reason = column.check(cell)
            values.append(cell if reason is None else None)
        else:
            reason = None if column.may_be_empty else "must not be empty"
            values.append(column.if_empty)
        if reason is not None:
            faults.append((column.name, cell or "", reason))
    return values, faults
