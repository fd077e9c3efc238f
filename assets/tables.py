"""Tables of metadata, as the pages draw them, by the columns that a read model has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

import dagster as dg

from ticketflow_orch.formatting.columns import Column, cells, header

Row = TypeVar("Row")


def table(columns: Sequence[Column[Row]], rows: Iterable[Row]) -> dg.TableMetadataValue:
    """What `columns` show of each of `rows`."""
    names = header(columns)
    schema = [dg.TableColumn(one.name, "int" if one.kind == "count" else "string") for one in columns]
    records = [dg.TableRecord(dict(zip(names, cells(columns, row), strict=True))) for row in rows]
    return dg.MetadataValue.table(records, dg.TableSchema(columns=schema))
