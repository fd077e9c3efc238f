"""Statements as Dagster sees them: a materialization a month, its metadata, its check, its refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from sqlalchemy import Engine, text
from sqlalchemy.engine import URL

from assets import settlement_statements, statements_add_up
from assets.settlement_statements import STATEMENT_COLUMNS
from resources import ClockResource, DatabaseResource
from tests.support.asset_runs import checks_of, failure_of
from tests.support.rows import add_movement, add_organization
from tests.support.settled import settle, tamper
from tests.support.statements import FEBRUARY, MARCH, close
from ticketflow_orch.settings import settings
from ticketflow_orch.statements.tables import SCHEMA


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the settings put statements."""
    monkeypatch.setenv("TICKETFLOW_STATEMENTS_PLACE", str(tmp_path))
    settings.cache_clear()
    yield tmp_path
    settings.cache_clear()


def materialize(url: URL, instance: dg.DagsterInstance, first: str, last: str = "") -> dg.ExecuteInProcessResult:
    months = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
    return dg.materialize(
        [settlement_statements, statements_add_up],
        instance=instance,
        partition_key=None if last else first,
        tags=months if last else None,
        resources={
            "database": DatabaseResource(url=url.render_as_string(hide_password=False)),
            "clock": ClockResource(fixed_at="2026-06-15T12:00:00Z"),
        },
        raise_on_error=False,
    )


def breaches_of(url: URL, instance: dg.DagsterInstance) -> tuple[str | None, list[str]]:
    """The description of the check, run alone, and what it found, which is something."""
    result = dg.materialize(
        [settlement_statements, statements_add_up],
        selection=dg.AssetSelection.checks(statements_add_up),
        instance=instance,
        resources={
            "database": DatabaseResource(url=url.render_as_string(hide_password=False)),
            "clock": ClockResource(),
        },
    )
    [evaluation] = result.get_asset_check_evaluations()
    assert not evaluation.passed
    table: Any = evaluation.metadata["breaches"].value
    return evaluation.description, [str(record.data["what"]) for record in table.records]


def metadata_of(result: dg.ExecuteInProcessResult) -> dict[str, dict[str, Any]]:
    return {
        str(event.partition): {key: value.value for key, value in event.metadata.items()}
        for event in result.asset_materializations_for_node("settlement_statements")
    }


def test_a_backfill_states_its_months_in_one_run_each_with_its_own_figures(
    engine: Engine, url: URL, instance: dg.DagsterInstance, place: Path
) -> None:
    organization = add_organization(engine, external_ref="teatro")
    add_movement(engine, organization, 10_000, "2026-02-10T10:00")
    add_movement(engine, organization, 20_000, "2026-03-10T10:00")
    add_movement(engine, organization, 20_000, "2026-03-10T10:00", currency="KWD")
    close(engine, FEBRUARY)
    close(engine, MARCH)
    result = materialize(url, instance, "2026-02", "2026-03")
    assert result.success
    metadata = metadata_of(result)
    assert {month: (found["statements"], found["files"]) for month, found in metadata.items()} == {
        "2026-02": (1, 3),
        "2026-03": (2, 4),
    }
    assert [dict(record.data) for record in metadata["2026-03"]["totals"].records] == [
        {"currency": "EUR", "statements": 1, "opening": "0.00", "net": "176.00", "returned": "0.00",
         "settled elsewhere": "0.00", "due": "176.00", "payable": "176.00", "closing": "0.00"},
        {"currency": "KWD", "statements": 1, "opening": "0.000", "net": "17.600", "returned": "0.000",
         "settled elsewhere": "0.000", "due": "17.600", "payable": "17.600", "closing": "0.000"},
    ]  # fmt: skip
    assert metadata["2026-03"]["csv"] == str(place / "2026-03" / "statements.csv")
    written = sum(path.stat().st_size for path in (place / "2026-03").rglob("*") if path.is_file())
    assert metadata["2026-03"]["bytes"] == written
    assert (
        "Nobody is mailed until `ticketflow installation set mail_from` says from when on."
        in metadata["2026-03"]["summary"]
    )
    assert checks_of(result)["statements_add_up"] == (True, "No month is bad.")
    with engine.connect() as connection:
        stated = connection.execute(text("SELECT count(*) FROM settlement_period WHERE stated_at IS NOT NULL"))
        assert stated.scalar_one() == 2


def test_a_month_whose_books_are_open_is_refused_in_one_sentence(
    engine: Engine, url: URL, instance: dg.DagsterInstance, place: Path
) -> None:
    add_organization(engine)
    close(engine, FEBRUARY)
    settle(engine, MARCH)
    result = materialize(url, instance, "2026-02", "2026-03")
    assert not result.success
    refusal = "2026-03 is SETTLED, and statements are of closed months; close its books first."
    assert failure_of(result) == refusal
    assert [path.name for path in place.iterdir() if not path.name.startswith(".")] == ["2026-02"]


def test_the_check_names_each_month_that_does_not_add_up_any_more(
    engine: Engine, url: URL, instance: dg.DagsterInstance, place: Path
) -> None:
    organization = add_organization(engine)
    for month in ("02", "03"):
        add_movement(engine, organization, 10_000, f"2026-{month}-10T10:00")
    close(engine, FEBRUARY)
    close(engine, MARCH)
    assert materialize(url, instance, "2026-02", "2026-03").success
    tamper(engine, "UPDATE ledger_entry SET captures = captures + 1, net = net + 1 WHERE month = '2026-02-01'")
    tamper(engine, "UPDATE organization_balance SET payable = 0, closing = due WHERE month = '2026-03-01'")
    description, breaches = breaches_of(url, instance)
    assert description == "2026-02: 1, 2026-03: 1"
    assert breaches == [
        "net in balances 88.00, in the ledger 88.01",
        "payable 88.0000, in balances 0.00; closing 0.0000, in balances 88.00",
    ]
    (place / "2026-02" / "statements.parquet").unlink()
    assert len(breaches_of(url, instance)[1]) == 2
    assert breaches_of(url, instance)[1][0].endswith("statements.parquet is missing; materialize the month again")


def test_the_columns_in_the_catalogue_are_those_of_the_files() -> None:
    assert [column.name for column in STATEMENT_COLUMNS.columns] == SCHEMA.names
