"""When the statements' schedule asks for a run, and for which months."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg
import pytest
from sqlalchemy import Engine
from sqlalchemy.engine import URL

from resources import DatabaseResource
from schedules.statements import statements_job, statements_schedule
from tests.schedules.runs import months_tick, months_ticked
from tests.support.books import APRIL, FEBRUARY, JANUARY, MARCH, settle_and_close
from tests.support.homes import dagster_instance
from tests.support.rows import add_movement, add_organization, instant
from tests.support.sql_statements import execute
from ticketflow_orch.definitions import build_definitions


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dagster_instance() as instance:
        yield instance


def tick(url: URL, instance: dg.DagsterInstance) -> dict[str, str] | str:
    """The tags of the run that is requested, or why none is."""
    return months_tick(statements_schedule, url, instance, instant("2026-05-03T05:00"))


def test_it_asks_for_all_closed_months_without_statements_in_one_run(
    engine: Engine, url: URL, instance: dg.DagsterInstance
) -> None:
    organization = add_organization(engine)
    for month in (JANUARY, FEBRUARY, MARCH):
        add_movement(engine, organization, 100, f"{month}-10T10:00")
    assert tick(url, instance) == "Every closed month has its statements."
    settle_and_close(engine, JANUARY, FEBRUARY, MARCH)
    assert tick(url, instance) == {
        "ticketflow/scheduled_for": "2026-05-03T05:00:00+00:00",
        "dagster/asset_partition_range_start": "2026-01",
        "dagster/asset_partition_range_end": "2026-03",
        "dagster/schedule_name": "statements_schedule",
    }
    execute(engine, "UPDATE settlement_period SET stated_at = now() WHERE month < '2026-03-01'")
    assert isinstance(asked := tick(url, instance), dict)
    assert asked["dagster/partition"] == "2026-03"
    job = build_definitions({"database": DatabaseResource(url="postgresql:///any")}).resolve_job_def(
        statements_job.name
    )
    run = instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED)
    assert run.run_id in str(tick(url, instance))


def test_months_that_are_stated_between_others_are_not_stated_anew(
    engine: Engine, url: URL, instance: dg.DagsterInstance
) -> None:
    add_movement(engine, add_organization(engine), 100, "2026-01-10T10:00")
    settle_and_close(engine, JANUARY, FEBRUARY, MARCH, APRIL)
    execute(engine, "UPDATE settlement_period SET stated_at = now() WHERE month = '2026-02-01'")
    asked = months_ticked(statements_schedule, url, instance, instant("2026-06-03T05:00")).run_requests or []
    assert asked[0].tags["dagster/partition"] == "2026-01"
    assert asked[1].tags["dagster/asset_partition_range_start"] == "2026-03"
    assert asked[1].tags["dagster/asset_partition_range_end"] == "2026-04"
    assert len({request.run_key for request in asked}) == 2
