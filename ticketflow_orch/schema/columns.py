"""How the tables' columns are written down: one short constructor for each shape that recurs."""

from __future__ import annotations

from typing import Any, TypedDict, Unpack

import sqlalchemy as sa
from sqlalchemy import CheckConstraint, Column, ForeignKey, Index, Table, text
from sqlalchemy.dialects.postgresql import DOMAIN
from sqlalchemy.schema import SchemaItem
from sqlalchemy.types import TypeEngine

metadata = sa.MetaData()

MONTH = DOMAIN("month_start", sa.Date, check="isfinite(VALUE) AND extract(day FROM VALUE) = 1", metadata=metadata)
AMOUNTS = ("captures", "refunds", "chargebacks", "fees", "commission", "commission_tax", "net")


class Options(TypedDict, total=False):
    nullable: bool
    primary_key: bool
    unique: bool
    server_default: sa.TextClause | str


def column(
    name: str, type_: type[TypeEngine[Any]] | TypeEngine[Any], *rest: SchemaItem, **options: Unpack[Options]
) -> Column[Any]:
    return Column(name, type_, *rest, **Options(nullable=False) | options)


def identity(*, always: bool = False) -> Column[Any]:
    return column("id", sa.BigInteger, sa.Identity(always=always), primary_key=True)


def text_column(name: str, **options: Unpack[Options]) -> Column[Any]:
    return column(name, sa.Text, **options)


def instant(name: str, **options: Unpack[Options]) -> Column[Any]:
    return column(name, sa.TIMESTAMP(timezone=True), **options)


def stamp(name: str) -> Column[Any]:
    return instant(name, server_default=text("clock_timestamp()"))


def month(name: str = "month", *rest: SchemaItem, **options: Unpack[Options]) -> Column[Any]:
    return column(name, MONTH, *rest, **options)


def reference(name: str, target: str, **options: Unpack[Options]) -> Column[Any]:
    return column(name, sa.BigInteger, ForeignKey(target), **options)


def count(name: str, type_: type[TypeEngine[Any]] = sa.BigInteger, *rest: SchemaItem) -> Column[Any]:
    return column(name, type_, *rest, server_default=text("0"))


def rate(name: str) -> Column[Any]:
    return column(name, sa.Integer, CheckConstraint(f"{name} BETWEEN 0 AND 10000"))


def one_of(column: str, *values: str) -> CheckConstraint:
    return CheckConstraint(f"{column} IN ({', '.join(repr(value) for value in values)})")


def exactly_when(column: str, condition: str) -> CheckConstraint:
    return CheckConstraint(f"({column} IS NOT NULL) = ({condition})")


def within_calendars(name: str, type_: type[TypeEngine[Any]], *columns: str) -> CheckConstraint:
    """The years that Python has, in each of `columns`."""
    zone = "" if type_ is sa.Date else "Z"
    spans = (f"{column} >= '0001-01-01{zone}' AND {column} < '10000-01-01{zone}'" for column in columns)
    return CheckConstraint(" AND ".join(spans), name=name)


def index(name: str, *columns: str, where: str | None = None, unique: bool = False, **options: Any) -> Index:  # noqa: ANN401
    predicate = None if where is None else text(where)
    return Index(name, *columns, unique=unique, postgresql_where=predicate, **options)


def table(name: str, *items: SchemaItem) -> Table:
    return Table(name, metadata, *items)
