"""Whatever happens and however late, each month's statements are its books, to the cent and by the database's own."""

from __future__ import annotations

import os
from decimal import Decimal
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest
from sqlalchemy import Engine, text

from tests.support.books import breaches, close
from tests.support.oracle import Business, record
from tests.support.rows import add_organization, instant
from tests.support.settled import settle
from tests.support.sql_statements import execute
from tests.support.statements import state
from ticketflow_orch.months import Month, months_between
from ticketflow_orch.statements.invariants import issued_months, statements_that_do_not_add_up
from ticketflow_orch.statements.storage import Place

MONTHS = tuple(months_between(Month(2026, 1), Month(2026, 5)))
ZONES = ("Pacific/Kiritimati", "Asia/Kathmandu", "Europe/Madrid", "America/St_Johns", "Pacific/Pago_Pago")
SEED = int(os.environ["CHAOS_SEED"])


@pytest.mark.parametrize("seed", [SEED])
def test_statements_are_the_books_over_late_data_parking_and_payouts_that_return(
    engine: Engine, tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    organizations = [
        add_organization(engine, timezone=zone, currency=code) for zone in ZONES for code in ("EUR", "KWD")
    ]
    business = Business(random, organizations, since=instant("2026-01-02"), until=instant("2026-05-30"))
    record(engine, business.movements(300))
    for month in MONTHS:
        for _ in range(random.choice([1, 2])):
            record(engine, business.movements(40))
            settle(engine, month, chunk_size=random.choice([1, 3, 100]))
        park(engine, random.choice(organizations), month)
        close(engine, month)
        return_payouts(engine, random.choice(organizations), month)
        result = state(engine, tmp_path, month, chunk_size=random.choice([1, 3, 100]))
        assert result.totals.keys() <= {"EUR", "JPY", "KWD"}
        if random.random() < 0.5:
            execute(engine, "UPDATE parked_organization SET resolved_at = now(), resolved_by = 'test'")
    assert breaches(engine) == [], f"CHAOS_SEED={seed}"
    with engine.connect() as connection:
        assert issued_months(connection) == MONTHS
        for month in MONTHS:
            finding = statements_that_do_not_add_up(connection, month, Place(tmp_path))
            assert finding.examples == (), f"CHAOS_SEED={seed}"
        balances = connection.execute(
            text("""
                SELECT month, external_ref, currency.code, net / 10.0 ^ exponent AS net, closing / 10.0 ^ exponent
                FROM organization_balance AS balance
                JOIN organization ON organization.id = organization_id JOIN currency ON code = balance.currency
                ORDER BY month, organization_id, code
            """)
        ).all()
    tables = [pq.read_table(tmp_path / str(month) / "statements.parquet").to_pylist() for month in MONTHS]
    stated = [
        (row["month"], row["organization"], row["currency"], row["net"], row["closing"])
        for table in tables
        for row in table
    ]
    assert stated == [tuple(row) for row in balances], f"CHAOS_SEED={seed}"
    for row in (row for table in tables for row in table):
        parts = ("captures", "refunds", "chargebacks", "fees", "adjustments")
        gross = sum((row[name] for name in parts), Decimal(0))
        assert row["net"] == gross - row["commission"] - row["commission_tax"]
        assert row["due"] == row["opening"] + row["net"] + row["returned"]
        assert row["closing"] == row["due"] - row["payable"]


def park(engine: Engine, organization: int, month: Month) -> None:
    """Park the organization by hand, unless it is."""
    execute(
        engine,
        """
        INSERT INTO parked_organization (organization_id, month, reason, parked_by)
        SELECT :id, :month, 'a dispute', 'test'
        WHERE NOT EXISTS (SELECT FROM parked_organization WHERE organization_id = :id AND resolved_at IS NULL)
        """.replace(":id", "CAST(:id AS bigint)"),
        id=organization,
        month=month.first_day,
    )


def return_payouts(engine: Engine, organization: int, month: Month) -> None:
    """What the month pays the organization, if anything, comes back in every currency."""
    execute(
        engine,
        """
        INSERT INTO payout (organization_id, currency, month, amount, state, answered_at)
        SELECT organization_id, currency, month, payable, 'RETURNED', clock_timestamp()
        FROM organization_balance WHERE organization_id = :id AND month = :month AND payable > 0
        """,
        id=organization,
        month=month.first_day,
    )
