"""Amounts are what a bigint holds; their sums are not. Whatever adds them up for people is exact all the same."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow.parquet as pq
import pytest
from babel import Locale
from sqlalchemy import Engine
from sqlalchemy.engine import URL

from assets import closed_books, monthly_settlement, payouts
from resources import ClockResource, DatabaseResource, OutboxResource
from tests.support.books import FEBRUARY, FIRST, JANUARY, close
from tests.support.payable import request, rows
from tests.support.rows import add_movement, add_organization
from tests.support.settled import NOW, settle
from tests.support.statements import state
from ticketflow_orch.closing.queries import balance_totals, payable_so_far
from ticketflow_orch.formatting.localization import amount
from ticketflow_orch.formatting.money import written_out
from ticketflow_orch.payouts.queries import paid_by_currency, requested_so_far
from ticketflow_orch.reports.board import read_board
from ticketflow_orch.reports.explain import explain
from ticketflow_orch.settings import settings
from ticketflow_orch.settlement.late_report import late_adjustments
from ticketflow_orch.settlement.queries import month_totals, top_organizations
from ticketflow_orch.statements.invariants import judged_statements
from ticketflow_orch.statements.storage import Place

LARGE = 9_000_000_000_000_000_000
SUM = 3 * LARGE
FREE = {"commission_rate_bps": 0, "commission_tax_bps": 0}


@pytest.fixture
def halls(engine: Engine) -> list[int]:
    """Three organizations, each with as much in January as a bigint holds; of the first, as much again in February."""
    organizations = [add_organization(engine, external_ref=f"hall-{number}", **FREE) for number in range(3)]
    for organization in organizations:
        add_movement(engine, organization, LARGE, "2026-01-10T10:00", **FREE)
    add_movement(engine, organizations[0], LARGE, "2026-02-10T10:00", **FREE)
    return organizations


def test_the_totals_of_a_month_and_its_balances_and_payouts_are_exact(engine: Engine, halls: list[int]) -> None:
    settle(engine, JANUARY)
    close(engine, JANUARY)
    assert [one.amount for one in request(engine, JANUARY).currencies] == [SUM]
    with engine.connect() as connection:
        assert [total.net for total in month_totals(connection, JANUARY, JANUARY)] == [SUM]
        assert [total.payable for total in balance_totals(connection, JANUARY, JANUARY)] == [SUM]
        assert payable_so_far(connection, JANUARY) == {"EUR": {JANUARY: SUM}}
        assert [paid.amount for paid in paid_by_currency(connection, JANUARY)] == [SUM]
        assert requested_so_far(connection, JANUARY) == {"EUR": {JANUARY: SUM}}
        [january] = read_board(connection, NOW, FIRST).months[:1]
        assert [total.net for total in january.totals] == [SUM]


def test_the_largest_organizations_of_several_months_are_exact(engine: Engine, halls: list[int]) -> None:
    settle(engine, JANUARY)
    settle(engine, FEBRUARY)
    with engine.connect() as connection:
        top = top_organizations(connection, JANUARY, FEBRUARY)
    assert [(one.external_ref, one.captures, one.net) for one in top] == [
        ("hall-0", 2 * LARGE, 2 * LARGE),
        ("hall-1", LARGE, LARGE),
        ("hall-2", LARGE, LARGE),
    ]


def test_movements_and_entries_that_are_too_much_together_are_explained(engine: Engine, halls: list[int]) -> None:
    settle(engine, JANUARY)
    add_movement(engine, halls[0], LARGE, "2026-01-11T10:00", **FREE)
    with engine.connect() as connection:
        found = explain(connection, "hall-0", JANUARY)
        assert [(line.captures, line.commission) for line in found.lines] == [(2 * LARGE, 0)]
        assert [entry.net for entry in found.entries] == [LARGE]
        assert late_adjustments(connection).count == 0


def test_commission_that_no_column_holds_is_explained_to_the_cent(engine: Engine) -> None:
    hall = add_organization(engine, external_ref="hall")
    for _ in range(3):
        add_movement(engine, hall, LARGE + 7, "2026-01-10T10:00", commission_rate_bps=10_000, commission_tax_bps=10_000)
    with engine.connect() as connection:
        [line] = explain(connection, "hall", JANUARY).lines
    assert (line.captures, line.commission, line.commission_tax) == (SUM + 21, SUM + 21, SUM + 21)


def test_statements_and_their_tables_are_exact(engine: Engine, tmp_path: Path, halls: list[int]) -> None:
    settle(engine, JANUARY)
    close(engine, JANUARY)
    assert state(engine, tmp_path, JANUARY).totals["EUR"].payable == SUM
    table = pq.read_table(tmp_path / "2026-01" / "statements.parquet").to_pylist()
    assert sum(row["payable"] for row in table) == Decimal(SUM) / 100
    assert written_out(LARGE, 2) in (tmp_path / "2026-01/organizations/hall-0/EUR.html").read_text("utf-8")
    with engine.connect() as connection:
        assert [finding.count for finding in judged_statements(connection, Place(tmp_path))] == [0]


def test_the_pages_of_a_month_show_exact_sums(
    engine: Engine, url: URL, halls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.cache_clear()
    shown: dict[str, Any] = {}
    for asset in (monthly_settlement, closed_books, payouts):
        result = dg.materialize(
            [asset],
            partition_key="2026-01",
            resources={
                "database": DatabaseResource(url=url.render_as_string(hide_password=False)),
                "clock": ClockResource(fixed_at="2026-05-03T06:30:00Z"),
                "outbox": OutboxResource(),
            },
        )
        [event] = result.asset_materializations_for_node(asset.key.to_user_string())
        shown |= {name: value.value for name, value in event.metadata.items()}
    settings.cache_clear()
    for name in ("net EUR", "payable EUR", "requested EUR"):
        assert shown[f"{name} (minor units)"] == SUM
        assert shown[f"{name}, months so far"].endswith(f"**{written_out(SUM, 2)}**")
    assert rows(engine, "SELECT sum(amount) FROM payout") == [(SUM,)]


def test_a_sum_is_written_with_all_of_its_digits() -> None:
    assert amount(SUM + 1, 2, Locale("en")) == "270,000,000,000,000,000.01"
    assert amount(-SUM, 0, Locale("es")) == "-27.000.000.000.000.000.000"
