"""The settlement as Dagster sees it: a materialization a month, its metadata, its checks, its refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from sqlalchemy import Engine, text
from sqlalchemy.engine import URL

from assets import SETTLEMENT_CHECKS, monthly_settlement
from assets.settlement_metadata import LATE_ROWS
from resources import ClockResource, DatabaseResource, OutboxResource
from tests.support.anomalous import won_twice
from tests.support.asset_runs import checks_of, failure_of
from tests.support.rows import add_movement, add_organization, instant
from tests.support.settled import MARCH, close_month, tamper
from ticketflow_orch.settings import settings


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def materialize(
    url: URL, instance: dg.DagsterInstance, month: str, now: str = "2026-06-15T12:00:00Z", **options: Any
) -> dg.ExecuteInProcessResult:
    return dg.materialize(
        [monthly_settlement, *SETTLEMENT_CHECKS],
        instance=instance,
        partition_key=month,
        resources={
            "database": DatabaseResource(url=url.render_as_string(hide_password=False)),
            "clock": ClockResource(fixed_at=now),
            "outbox": OutboxResource(),
        },
        raise_on_error=False,
        **options,
    )


def test_a_materialization_carries_what_the_month_came_to(
    engine: Engine, url: URL, instance: dg.DagsterInstance
) -> None:
    organization = add_organization(engine, name="Teatro Real")
    add_organization(engine, currency="KWD", timezone="Asia/Kuwait")
    add_movement(engine, organization, 100_000, "2026-03-10T10:00")
    result = materialize(url, instance, "2026-03")
    assert result.success
    metadata = {
        key: value.value
        for key, value in result.asset_materializations_for_node("monthly_settlement")[0].metadata.items()
    }
    assert metadata["organizations"] == 2
    assert metadata["rows new"] == 2
    assert metadata["net EUR (minor units)"] == 88_000
    assert [dict(record.data)["net"] for record in metadata["totals"].records] == ["880.00", "0.000"]
    assert metadata["top organizations"].records[0].data["organization"] == "Teatro Real"
    assert metadata["net EUR, months so far"].endswith("**880.00**")
    assert all(passed for passed, _ in checks_of(result).values())
    again = materialize(url, instance, "2026-03")
    summary = again.asset_materializations_for_node("monthly_settlement")[0].metadata["summary"].value
    assert summary == "**Nothing came late.** Nothing was posted in 2026-03."


def test_a_month_that_is_not_over_is_refused_in_one_sentence(
    engine: Engine, url: URL, instance: dg.DagsterInstance
) -> None:
    add_organization(engine, timezone="Pacific/Pago_Pago")
    result = materialize(url, instance, "2026-03", now="2026-04-01T10:00:00Z")
    assert not result.success
    assert failure_of(result) == (
        "2026-03 is not over in Pacific/Pago_Pago before 2026-04-01 13:00 (Europe/Madrid), and it is 2026-04-01 12:00; "
        "settle it from then on."
    )


def test_the_checks_name_every_bad_month_and_not_only_the_last(
    engine: Engine, url: URL, instance: dg.DagsterInstance
) -> None:
    organization = add_organization(engine)
    for month in ("2026-03", "2026-04"):
        assert materialize(url, instance, month).success
    tamper(
        engine,
        f"UPDATE ledger_entry SET fees = 1, net = 1 WHERE organization_id = {organization} AND month = '2026-03-01'",
    )
    checks = checks_of(materialize(url, instance, "2026-05"))
    assert checks["honest"] == (False, "2026-03: 1")
    assert checks["complete"] == (True, "No month is bad.")


def test_a_parked_organization_turns_the_check_red_and_leaves_the_month_settled(
    engine: Engine, url: URL, instance: dg.DagsterInstance
) -> None:
    good, bad = add_organization(engine), add_organization(engine)
    add_movement(engine, good, 100, "2026-03-10T10:00")
    for _ in range(3):
        add_movement(engine, bad, 2**62, "2026-03-10T10:00")
    result = materialize(url, instance, "2026-03")
    assert result.success
    assert checks_of(result)["nothing_parked"] == (False, "2026-03: 1")
    assert checks_of(result)["honest"][0]
    metadata = result.asset_materializations_for_node("monthly_settlement")[0].metadata
    assert metadata["parked"].value == 1
    assert "out of range" in str(metadata["parked organizations"].value)
    # Whoever is parked is not paid, and stays so when the month is closed.
    close_month(engine, MARCH)
    assert checks_of(materialize(url, instance, "2026-04"))["nothing_parked"] == (False, "2026-03: 1")


def test_what_looks_wrong_warns_and_leaves_the_month_settled(
    engine: Engine, url: URL, instance: dg.DagsterInstance
) -> None:
    won_twice(engine, add_organization(engine, external_ref="hall"))
    result = materialize(url, instance, "2026-03")
    assert result.success
    [warning] = [one for one in result.get_asset_check_evaluations() if not one.passed]
    assert (warning.check_name, warning.severity) == ("movements_plausible", dg.AssetCheckSeverity.WARN)
    assert warning.description == "reversed_once: 1"


def test_a_run_that_the_schedule_asked_for_is_on_record_as_a_start_of_its_window(
    engine: Engine, url: URL, instance: dg.DagsterInstance
) -> None:
    add_organization(engine)
    tags = {"ticketflow/scheduled_for": "2026-04-02T05:00:00+02:00"}
    assert materialize(url, instance, "2026-03", tags=tags).success
    assert materialize(url, instance, "2026-02").success
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT job, scheduled_for, partition, outcome FROM job_firing")).all()
    assert [tuple(row) for row in rows] == [("monthly_settlement", instant("2026-04-02T03:00"), "2026-03", "ACCEPTED")]


def test_what_came_late_is_a_table_of_the_run(engine: Engine, url: URL, instance: dg.DagsterInstance) -> None:
    organizations = [add_organization(engine) for _ in range(LATE_ROWS + 2)]
    materialize(url, instance, "2026-03")
    add_movement(engine, organizations[0], 100_000, "2026-03-10T10:00")
    for organization in organizations:
        add_movement(engine, organization, 100, "2026-03-10T10:00")
    result = materialize(url, instance, "2026-03")
    metadata = result.asset_materializations_for_node("monthly_settlement")[0].metadata
    assert len(metadata["came late"].value.records) == LATE_ROWS
    assert dict(metadata["came late"].value.records[0].data)["difference"] == "880.88"
    assert metadata["came late, not listed"].value == 2
    again = materialize(url, instance, "2026-03")
    assert "came late" not in again.asset_materializations_for_node("monthly_settlement")[0].metadata


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TICKETFLOW_HOME", str(tmp_path / "home"))
    settings.cache_clear()
    yield tmp_path / "home"
    settings.cache_clear()


def test_a_dry_run_is_an_observation_that_leaves_the_month_as_unsettled_as_it_was(
    engine: Engine, url: URL, instance: dg.DagsterInstance, home: Path
) -> None:
    organization = add_organization(engine)
    add_movement(engine, organization, 100_000, "2026-03-10T10:00")
    add_organization(engine)
    dry = {"dry_run": True, "dry_run_file": "march.csv"}
    config = {"ops": {"monthly_settlement": {"config": dry}}}
    result = materialize(url, instance, "2026-03", run_config=config)
    assert result.success
    assert result.asset_materializations_for_node("monthly_settlement") == []
    assert result.get_asset_check_evaluations() == []
    assert instance.get_materialized_partitions(monthly_settlement.key) == set()
    [observation] = result.asset_observations_for_node("monthly_settlement")
    assert observation.partition == "2026-03"
    assert str(observation.metadata["summary"].value).startswith("**Dry run: nothing was posted.** In 2026-03")
    assert dict(observation.metadata["would be posted"].value.records[0].data)["settlements"] == 2
    assert len((home / "dry-runs" / "march.csv").read_text("utf-8").splitlines()) == 3
    with engine.connect() as connection:
        for table in ("ledger_entry", "settlement_period", "settlement_pass", "settlement_window", "job_firing"):
            assert connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one() == 0
    assert materialize(url, instance, "2026-03").success
    assert instance.get_materialized_partitions(monthly_settlement.key) == {"2026-03"}


def test_a_dry_run_writes_nowhere_but_in_its_folder(
    engine: Engine, url: URL, instance: dg.DagsterInstance, home: Path, tmp_path: Path
) -> None:
    add_movement(engine, add_organization(engine), 100_000, "2026-03-10T10:00")
    other = tmp_path / "delivery.toml"
    other.write_text("as it was", "utf-8")
    (home / "dry-runs").mkdir(parents=True)
    (home / "dry-runs" / "link.csv").symlink_to(other)
    (home / "dry-runs" / "up").symlink_to(tmp_path)
    for name in (str(other), "../../delivery.toml", "link.csv", "up/delivery.toml", "..", ".", "new/x.csv"):
        dry = {"dry_run": True, "dry_run_file": name}
        run_config = {"ops": {"monthly_settlement": {"config": dry}}}
        assert not materialize(url, instance, "2026-03", run_config=run_config).success, name
    assert other.read_text("utf-8") == "as it was"
    assert sorted(path.name for path in (home / "dry-runs").iterdir()) == ["link.csv", "up"]


def test_a_dry_run_of_a_month_that_is_not_over_is_refused_like_a_settlement(
    engine: Engine, url: URL, instance: dg.DagsterInstance
) -> None:
    add_organization(engine)
    config = {"ops": {"monthly_settlement": {"config": {"dry_run": True}}}}
    result = materialize(url, instance, "2026-03", now="2026-03-15T10:00:00Z", run_config=config)
    assert not result.success
    assert failure_of(result).startswith("2026-03 is not over in Europe/Madrid")
