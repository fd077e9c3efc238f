"""A connection that is cut in the middle of a run costs it seconds: the run succeeds, and nothing is done twice."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest
from sqlalchemy import Engine, text
from sqlalchemy.engine import URL

from assets import closed_books, monthly_settlement, payouts, settlement_statements
from resources import ClockResource, DatabaseResource, OutboxResource
from tests.schedules.runs import Office, failure
from tests.support.cuts import CUT, fail, failures, raising
from tests.support.homes import dagster_instance
from tests.support.rows import add_movement, add_organization
from tests.support.scheduled_work import EFFECT, NOW, add_work, effects, firings
from ticketflow_orch.settings import settings


@pytest.fixture(scope="module")
def instance() -> Iterator[dg.DagsterInstance]:
    with dagster_instance() as instance:
        yield instance


@pytest.fixture
def office(url: URL, instance: dg.DagsterInstance) -> Office:
    return Office(url, instance)


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where statements are written, which is forgotten afterwards."""
    monkeypatch.setenv("TICKETFLOW_HOME", str(tmp_path))
    settings.cache_clear()
    yield
    settings.cache_clear()


@pytest.mark.parametrize("fault", [CUT, raising("40P01")], ids=["cut", "deadlock"])
@pytest.mark.parametrize(
    ("job", "statement"),
    [
        ("close_events_job", "UPDATE event"),
        ("expire_reservations_job", "UPDATE reservation"),
        ("send_reminders_job", "INSERT reminder"),
        ("housekeeping_job", "DELETE job_firing"),
        ("close_events_job", "INSERT job_firing"),
        ("close_events_job", "INSERT job_execution"),
    ],
)
def test_a_scheduled_run_goes_on(engine: Engine, office: Office, job: str, statement: str, fault: str) -> None:
    add_work(engine)
    fail(engine, *statement.split(), fault)
    done = office.run(job, NOW)
    assert done["status"] == "done"
    assert failures(engine) >= 2
    assert effects(engine) == EFFECT.get(job, [])
    assert firings(engine, job) == ["ACCEPTED"]


def test_a_scheduled_run_does_not_try_again_what_fails_on_its_data(engine: Engine, office: Office) -> None:
    fail(engine, "DELETE", "job_firing", raising("23503"), times=1000)
    result = office.attempt("housekeeping_job", NOW, {})
    assert not result.success
    assert failures(engine) == 1
    with engine.connect() as connection:
        assert connection.execute(text("SELECT state FROM job_execution")).scalars().all() == ["FAILED"]


@pytest.mark.parametrize(
    ("asset", "statement"),
    [
        (monthly_settlement, "INSERT ledger_entry"),
        (closed_books, "INSERT organization_balance"),
        (payouts, "INSERT payout"),
        (settlement_statements, "UPDATE settlement_period"),
    ],
    ids=["settlement", "closing", "payouts", "statements"],
)
@pytest.mark.usefixtures("own_home")
def test_a_run_of_a_month_goes_on(engine: Engine, office: Office, asset: dg.AssetsDefinition, statement: str) -> None:
    add_movement(engine, add_organization(engine), 10_000, "2026-01-10T10:00")
    chain = [monthly_settlement, closed_books, payouts, settlement_statements]
    for step in chain[: chain.index(asset)]:
        assert run(step, office).success
    fail(engine, *statement.split())
    result = run(asset, office)
    assert result.success, failure(result)
    assert failures(engine) >= 2
    assert len(result.asset_materializations_for_node(asset.node_def.name)) == 1


def run(asset: dg.AssetsDefinition, office: Office) -> dg.ExecuteInProcessResult:
    return dg.materialize(
        [asset],
        instance=office.instance,
        partition_key="2026-01",
        resources={
            "database": DatabaseResource(url=office.url.render_as_string(hide_password=False)),
            "clock": ClockResource(fixed_at=(NOW - timedelta(days=90)).isoformat()),
            "outbox": OutboxResource(),
        },
        raise_on_error=False,
    )
