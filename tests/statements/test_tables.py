"""The tables of a month's statements: columns that stay, amounts to the cent, cells that run nowhere."""

from __future__ import annotations

import csv
from datetime import date
from decimal import Decimal
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from sqlalchemy import Engine

from tests.support.rows import add_movement, add_organization, instant
from tests.support.statements import FEBRUARY, MARCH, close, state
from ticketflow_orch.formatting.csv_files import exact


def rows_of(folder: Path, month: str = "2026-03") -> list[dict[str, str]]:
    with (folder / month / "statements.csv").open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def test_each_currency_has_its_own_row_with_its_own_decimals(engine: Engine, tmp_path: Path) -> None:
    organization = add_organization(engine, external_ref="teatro", name="Teatro Real")
    for currency, amount in (("EUR", 100_000), ("JPY", 100_000), ("KWD", -1)):
        kind = {} if amount > 0 else {"kind": "FEE", "commission_rate_bps": 0, "commission_tax_bps": 0, "reason": "x"}
        add_movement(engine, organization, amount, "2026-03-10T10:00", currency=currency, **kind)
    close(engine, MARCH)
    result = state(engine, tmp_path)
    assert result.statements == 3
    assert [(row["currency"], row["exponent"], row["captures"], row["net"]) for row in rows_of(tmp_path)] == [
        ("EUR", "2", "1000.00", "880.00"),
        ("JPY", "0", "100000", "88000"),
        ("KWD", "3", "0.000", "-0.001"),
    ]
    table = pq.read_table(result.parquet).to_pylist()
    assert [row["net"] for row in table] == [Decimal("880.0000"), Decimal("88000.0000"), Decimal("-0.0010")]
    assert table[0]["month"] == date(2026, 3, 1)
    assert table[0]["covers_from"] == instant("2026-02-28T23:00")
    assert table[0]["covers_until"] == instant("2026-03-31T22:00")
    assert rows_of(tmp_path)[0]["covers_from"] == "2026-02-28T23:00:00Z"


def test_the_columns_are_the_same_in_both_tables_and_for_ever(engine: Engine, tmp_path: Path) -> None:
    add_organization(engine)
    close(engine, MARCH)
    result = state(engine, tmp_path)
    columns = [
        "month", "organization", "name", "timezone", "covers_from", "covers_until", "currency", "exponent", "opening",
        "captures", "refunds", "chargebacks", "fees", "commission", "commission_tax", "adjustments", "net", "returned",
        "due", "payable", "closing", "settled_elsewhere",
    ]  # fmt: skip
    assert pq.read_schema(result.parquet).names == columns
    assert Path(result.csv).read_text("utf-8-sig").splitlines()[0] == ",".join(f'"{name}"' for name in columns)


def test_a_formula_is_defused_and_a_negative_amount_is_left_alone(engine: Engine, tmp_path: Path) -> None:
    name = '=HYPERLINK("http://evil.example","click")'
    organization = add_organization(engine, external_ref="@ref", name=name)
    add_movement(
        engine, organization, -500, "2026-03-10T10:00", kind="FEE", commission_rate_bps=0, commission_tax_bps=0,
        reason="-2+3+cmd|' /C calc'!A0",
    )  # fmt: skip
    close(engine, MARCH)
    result = state(engine, tmp_path)
    [row] = rows_of(tmp_path)
    assert (row["organization"], row["name"], row["net"]) == ("'@ref", f"'{name}", "-5.00")
    [raw] = pq.read_table(result.parquet).to_pylist()
    assert (raw["organization"], raw["name"], raw["net"]) == ("@ref", name, Decimal("-5.0000"))


@pytest.mark.parametrize(
    ("minor_units", "exponent", "written"),
    [
        (0, 0, "0"),
        (-1, 0, "-1"),
        (5, 2, "0.05"),
        (-5, 2, "-0.05"),
        (-123_456_789, 2, "-1234567.89"),
        (1, 3, "0.001"),
        (-(2**63), 3, "-9223372036854775.808"),
    ],
)
def test_an_amount_is_written_exactly_without_anything_between_thousands(
    minor_units: int, exponent: int, written: str
) -> None:
    assert exact(minor_units, exponent) == written
    assert Decimal(written).scaleb(exponent) == minor_units


def test_the_largest_amounts_that_the_books_hold_fit_into_the_parquet_file(engine: Engine, tmp_path: Path) -> None:
    organization = add_organization(engine, currency="JPY")
    largest = 2**63 - 1
    rates = {"commission_rate_bps": 0, "commission_tax_bps": 0}
    add_movement(engine, organization, largest, "2026-03-10T10:00", currency="JPY", **rates)
    close(engine, MARCH)
    [row] = pq.read_table(state(engine, tmp_path).parquet).to_pylist()
    assert row["net"] == Decimal(largest)


def test_a_carry_without_movements_has_its_row(engine: Engine, tmp_path: Path) -> None:
    organization = add_organization(engine)
    add_movement(engine, organization, 1_000, "2026-02-10T10:00", currency="USD")
    close(engine, FEBRUARY)
    close(engine, MARCH)
    state(engine, tmp_path)
    assert [(row["currency"], row["opening"], row["net"], row["closing"]) for row in rows_of(tmp_path)] == [
        ("EUR", "0.00", "0.00", "0.00"),
        ("USD", "8.80", "0.00", "8.80"),
    ]
