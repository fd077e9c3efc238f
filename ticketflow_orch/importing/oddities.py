"""What an import lets in and yet says: files without rows, and instants, days and months that are likely mistyped."""

from __future__ import annotations

from collections.abc import Iterator

from ticketflow_orch.db.sql_files import Statement, sql
from ticketflow_orch.formatting.counts import counted
from ticketflow_orch.importing.format import KINDS, Kind
from ticketflow_orch.importing.staging import Staging

# What the cells of a column say, as an instant; a month has a column of text, and reads as its first day.
_AS_INSTANT = {"timestamptz": "{}", "date": "CAST({} AS timestamp) AT TIME ZONE 'UTC'"}
_MONTH_AS_INSTANT = "CAST({} || '-01' AS timestamp) AT TIME ZONE 'UTC'"


def odd_but_allowed(staging: Staging) -> tuple[str, ...]:
    """A sentence about each oddity among the rows that are new."""
    empty = [f"{file} has a header line and no rows." for file in staging.without_rows]
    return (*empty, *(note for kind in _FAR_FROM_NOW if staging.rows[kind] for note in _far_from_now(staging, kind)))


def _query(kind: Kind) -> Statement | None:
    """The question about a kind's columns that say when; None where there is no such column."""
    instants = {
        column.name: (_MONTH_AS_INSTANT if column.is_month else _AS_INSTANT[column.type]).format(column.name)
        for column in kind.columns
        if column.is_month or column.type in _AS_INSTANT
    }
    cells = ", ".join(f"('{name}', {kind.position(name)}, {value})" for name, value in instants.items())
    return sql(__file__, "far_from_now", table=kind.table, cells=cells) if cells else None


_FAR_FROM_NOW = {kind: query for kind in KINDS if (query := _query(kind)) is not None}


def _far_from_now(staging: Staging, kind: Kind) -> Iterator[str]:
    for row in staging.connection.exec_driver_sql(_FAR_FROM_NOW[kind]):
        span = f"{row.earliest:%Y-%m-%d}" + (f" to {row.latest:%Y-%m-%d}" if row.latest != row.earliest else "")
        yield (
            f"{staging.files[kind]}: {row.column} is far from now in {counted(row.rows, 'row')} ({span}), "
            f"the first on line {row.line}."
        )
