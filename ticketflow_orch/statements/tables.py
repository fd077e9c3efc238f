"""A month's statements as tables: one CSV and one Parquet file with a row per organization and currency.

Both have the same columns in the same order; `columns` says which. Amounts are exact decimals in major units,
with a dot; instants are UTC. In the CSV amounts have as many decimals as their currency; in the Parquet file, where a
column has one type, four. Text that a spreadsheet would take for a formula is defused in the CSV with an apostrophe.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from typing import Any, BinaryIO, Self

import pyarrow as pa
import pyarrow.parquet as pq

from ticketflow_orch.formatting.csv_files import Writer, exact
from ticketflow_orch.months import zone
from ticketflow_orch.statements.columns import AMOUNT, COLUMNS, StatementColumn, values
from ticketflow_orch.statements.model import Movement, Statement

_TYPES = {
    "date": pa.date32(), "string": pa.string(), "timestamp": pa.timestamp("us", tz="UTC"), "int16": pa.int16(),
    AMOUNT: pa.decimal128(38, 4),
}  # fmt: skip
SCHEMA = pa.schema([pa.field(column.name, _TYPES[column.type], nullable=False) for column in COLUMNS])
_ROWS_A_GROUP = 10_000

Row = tuple[Any, ...]


class StatementTables:
    """Writes both tables row by row and holds no more than a group of rows; complete when its block ends.

    The files stay open.
    """

    def __init__(self, csv_file: BinaryIO, parquet_file: BinaryIO) -> None:
        self._text = io.TextIOWrapper(csv_file, "utf-8", newline="")
        self._csv = Writer(self._text)
        self._csv.writerow(SCHEMA.names)
        self._parquet = pq.ParquetWriter(parquet_file, SCHEMA, compression="zstd", version="2.6")
        self._group: list[Row] = []

    def add(self, statement: Statement) -> None:
        """Write the row of one more statement."""
        row = tuple(zip(COLUMNS, values(statement), strict=True))
        exponent = statement.exponent
        self._csv.writerow(tuple(_in_csv(value, column, exponent) for column, value in row))
        self._group.append(tuple(
            Decimal(value).scaleb(-exponent) if column.type == AMOUNT else value for column, value in row
        ))  # fmt: skip
        if len(self._group) == _ROWS_A_GROUP:
            self._write_group()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._group:
            self._write_group()
        self._parquet.close()
        self._text.flush()
        self._text.detach()

    def _write_group(self) -> None:
        columns = zip(*self._group, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
        self._parquet.write_table(pa.Table.from_arrays(arrays, schema=SCHEMA))
        self._group = []


_MOVEMENT_COLUMNS = (
    "occurred_at", "local_time", "timezone", "reference", "kind", "is_void", "refers_to", "reason", "currency",
    "exponent", "amount",
)  # fmt: skip


@contextmanager
def movements_table(file: BinaryIO, statement: Statement) -> Iterator[Any]:
    """A function that writes more movements of `statement` to `file`, as CSV in the manner of the tables."""
    place = zone(statement.party.timezone)
    text = io.TextIOWrapper(file, "utf-8", newline="")
    writer = Writer(text)
    writer.writerow(_MOVEMENT_COLUMNS)

    def write(movements: Iterable[Movement]) -> None:
        writer.writerows(
            (
                _iso(movement.occurred_at), movement.occurred_at.astimezone(place).isoformat(), place.key,
                movement.external_ref, movement.kind, str(movement.is_void).lower(),
                movement.reverses or "", movement.reason or "", statement.currency, statement.exponent,
                exact(movement.amount, statement.exponent),
            )
            for movement in movements
        )  # fmt: skip

    yield write
    text.flush()
    text.detach()


def keys_in(parquet_file: BinaryIO) -> Iterator[tuple[str, str]]:
    """Organization reference and currency of each statement in a Parquet file of statements, in its order."""
    for batch in pq.ParquetFile(parquet_file).iter_batches(columns=["organization", "currency"]):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def totals_in(parquet_file: BinaryIO, wanted: Sequence[str]) -> dict[str, dict[str, Decimal]]:
    """Per currency the sums of the `wanted` amounts that a Parquet file of statements comes to."""
    totals: dict[str, dict[str, Decimal]] = {}
    for batch in pq.ParquetFile(parquet_file).iter_batches(columns=["currency", *wanted]):
        sums: pa.Table = (
            pa.Table.from_batches([batch]).group_by("currency").aggregate([(name, "sum") for name in wanted])
        )
        for row in sums.to_pylist():
            known = totals.setdefault(row["currency"], dict.fromkeys(wanted, Decimal(0)))
            for name in wanted:
                known[name] += row[f"{name}_sum"]
    return totals


def _in_csv(value: Any, column: StatementColumn, exponent: int) -> object:  # noqa: ANN401 - of whatever type
    match column.type:
        case "decimal(38,4)":
            return exact(value, exponent)
        case "timestamp":
            return _iso(value)
        case "date":
            return value.isoformat()
        case _:
            return value


def _iso(instant: datetime) -> str:
    return instant.isoformat().replace("+00:00", "Z")
