"""Real bookings, imported and settled, against sums that were computed without this project."""

from __future__ import annotations

import csv
import gzip
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import dagster as dg
import pytest
from sqlalchemy import Engine, text
from sqlalchemy.engine import URL

from resources import DatabaseResource
from tests.conftest import fresh_database
from tests.support.copies import shared_database
from tests.support.folders import column, counts
from tests.support.rows import instant
from ticketflow_orch.definitions import build_definitions
from ticketflow_orch.importing import import_folder
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.months import Month, months_between
from ticketflow_orch.settlement import SettlementOptions, settle_month
from ticketflow_orch.settlement.due import months_over

BOOKINGS = Path(__file__).resolve().parents[2] / "shared" / "data" / "hotel_bookings"
FIRST, NOW = Month(2014, 10), instant("2018-01-15T00:00")

pytestmark = pytest.mark.skipif(not BOOKINGS.is_dir(), reason="the real bookings are not beside this checkout")


class Imported(NamedTuple):
    """The name of a database that holds them, and what the import said meanwhile: a step and its rows."""

    database: str
    steps: list[tuple[str, int]]


@pytest.fixture(scope="module")
def imported(server: EmbeddedServer) -> Iterator[Imported]:
    with shared_database(server) as engine:
        steps: list[tuple[str, int]] = []
        import_folder(engine, BOOKINGS, FIRST, lambda step, rows: steps.append((step, rows)))
        # Nobody may be in a database that is copied.
        engine.dispose()
        yield Imported(str(engine.url.database), steps)


@pytest.fixture
def url(server: EmbeddedServer, imported: Imported) -> Iterator[URL]:
    """The URL of a copy of that database."""
    with fresh_database(server, imported.database) as url:
        yield url


def test_they_come_in_whole(engine: Engine, imported: Imported) -> None:
    assert counts(engine) == {
        "organization": 410, "event": 16_171, "reservation": 119_390, "money_movement": 90_277, "data_import": 1,
    }  # fmt: skip
    assert column(engine, "SELECT sum(amount) FROM money_movement GROUP BY kind ORDER BY kind") == [
        3_006_262_142, -46_196_018,
    ]  # fmt: skip
    assert ("reading reservations", 50_000) in imported.steps
    assert imported.steps[-1] == ("loading money_movements", 90_277)


@pytest.mark.every_server
def test_every_organization_and_month_equals_the_truth_to_the_cent(engine: Engine) -> None:
    with engine.connect() as connection:
        months = months_over(connection, NOW, FIRST)
    assert months == tuple(months_between(FIRST, Month(2017, 12)))
    for month in months:
        settle_month(
            engine, month, now=NOW, first_month=FIRST, run_id="run", settled_by="test", options=SettlementOptions()
        )
    assert ledger(engine) == truth()


def test_runs_of_the_asset_come_to_the_same_and_their_checks_are_green(engine: Engine, url: URL) -> None:
    months = [str(month) for month in months_between(Month(2016, 7), Month(2016, 9))]
    job = build_definitions({"database": DatabaseResource(url=url.render_as_string(hide_password=False))})
    with dg.DagsterInstance.ephemeral() as instance:
        for month in months:
            result = job.resolve_job_def("monthly_settlement_job").execute_in_process(
                partition_key=month,
                instance=instance,
                run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
            )
            assert result.success
            assert all(check.passed for check in result.get_asset_check_evaluations())
    of_months = {row: number for row, number in truth().items() if row[1] in months}
    assert of_months
    assert ledger(engine) == of_months


def ledger(engine: Engine) -> Counter[tuple[str, ...]]:
    """Every ledger row with movements, as the truth file writes it."""
    with engine.connect() as connection:
        rows = connection.execute(
            text("""
                SELECT external_ref, to_char(month, 'YYYY-MM'), entry.currency, captures, refunds, commission,
                    commission_tax, net
                FROM ledger_entry AS entry JOIN organization ON organization.id = organization_id
                WHERE (captures, refunds) <> (0, 0)
            """)
        )
        return Counter(tuple(map(str, row)) for row in rows)


def truth() -> Counter[tuple[str, ...]]:
    with gzip.open(BOOKINGS / "truth.csv.gz", "rt", newline="") as file:
        header, *rows = csv.reader(file)
    assert header[:3] == ["organization_ref", "month", "currency"]
    assert header[3:] == ["captures", "refunds", "commission", "commission_tax", "net"]
    return Counter(map(tuple, rows))
