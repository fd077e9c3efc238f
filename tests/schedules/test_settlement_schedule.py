"""When the settlement is attempted: what is due at a tick, and that a missed tick is made up for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from unittest.mock import patch
from zoneinfo import ZoneInfo

import dagster as dg
import pytest
from sqlalchemy import Engine
from sqlalchemy.engine import URL

from resources import DatabaseResource
from schedules import monthly_settlement_job, settlement_schedule
from tests.support.homes import dagster_instance, fresh_home
from tests.support.rows import add_movement, add_organization, instant
from tests.support.settled import close_month, settle
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.definitions import build_definitions
from ticketflow_orch.months import Month
from ticketflow_orch.settings import settings

NOTHING_DUE = "Every month that is over is settled, and nothing came late."


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dagster_instance() as instance:
        yield instance


@pytest.fixture
def home(scratch: Path) -> Iterator[Path]:
    with fresh_home(scratch, TICKETFLOW_FIRST_MONTH="2014-10") as home:
        yield home


def tick(url: URL, instance: dg.DagsterInstance, at: str) -> list[str] | str:
    """The months that the schedule requests at `at`, or why it skips."""
    requests = requested(url, instance, at)
    return requests if isinstance(requests, str) else [request.partition_key or "" for request in requests]


def requested(url: URL, instance: dg.DagsterInstance, at: str) -> list[dg.RunRequest] | str:
    """The runs that the schedule requests at `at`, or why it skips."""
    database = DatabaseResource(url=url.render_as_string(hide_password=False))
    with dg.build_schedule_context(
        instance=instance,
        scheduled_execution_time=instant(at),
        resources={"database": database},
        repository_def=build_definitions({"database": database}).get_repository_def(),
    ) as context:
        data = settlement_schedule.evaluate_tick(context)
    return data.skip_message or list(data.run_requests or ())


def test_every_month_that_is_over_and_unsettled_is_requested(
    engine: Engine, url: URL, instance: dg.DagsterInstance
) -> None:
    organization = add_organization(engine)
    assert tick(url, instance, "2026-06-02T03:00") == NOTHING_DUE
    add_movement(engine, organization, 100, "2026-02-10T10:00")
    assert tick(url, instance, "2026-06-02T03:00") == ["2026-02", "2026-03", "2026-04", "2026-05"]
    settle(engine, Month(2026, 3))
    assert tick(url, instance, "2026-06-05T03:00") == ["2026-02", "2026-04", "2026-05"]


def test_the_first_month_that_is_not_closed_is_requested_again_when_something_came_late(
    engine: Engine, url: URL, instance: dg.DagsterInstance
) -> None:
    organization = add_organization(engine)
    add_movement(engine, organization, 100, "2026-03-10T10:00")
    for month in (3, 4, 5):
        settle(engine, Month(2026, month))
    close_month(engine, Month(2026, 3))
    assert tick(url, instance, "2026-06-05T03:00") == NOTHING_DUE
    add_movement(engine, organization, 7, "2026-03-11T10:00")
    assert tick(url, instance, "2026-06-05T03:00") == ["2026-04"]


def test_a_month_is_not_requested_while_a_zone_is_still_in_it(
    engine: Engine, url: URL, instance: dg.DagsterInstance
) -> None:
    add_movement(engine, add_organization(engine, timezone="Pacific/Pago_Pago"), 100, "2026-02-10T10:00")
    assert tick(url, instance, "2026-03-01T10:59") == NOTHING_DUE
    assert tick(url, instance, "2026-03-01T11:00") == ["2026-02"]


def test_the_month_of_the_first_movement_is_the_organizations_own(
    engine: Engine, url: URL, instance: dg.DagsterInstance
) -> None:
    # 13:00 UTC on 31 January is 1 February on Kiritimati.
    add_movement(engine, add_organization(engine, timezone="Pacific/Kiritimati"), 100, "2026-01-31T13:00")
    assert tick(url, instance, "2026-03-02T04:00") == ["2026-02"]


def test_a_month_that_is_in_a_run_already_is_left_alone(engine: Engine, url: URL, instance: dg.DagsterInstance) -> None:
    add_movement(engine, add_organization(engine), 100, "2026-04-10T10:00")
    instance.create_run_for_job(
        build_definitions({"database": DatabaseResource(url="postgresql:///any")}).resolve_job_def(
            monthly_settlement_job.name
        ),
        tags={"dagster/partition": "2026-04"},
        status=dg.DagsterRunStatus.STARTED,
    )
    assert tick(url, instance, "2026-06-02T03:00") == ["2026-05"]


@pytest.mark.parametrize(
    ("size", "shards"),
    [
        ({"SHARD_ABOVE": "1000000", "MAX_SHARDS": "4"}, None),
        ({"SHARD_ABOVE": "2"}, None),
        ({"SHARD_ABOVE": "2", "MAX_SHARDS": "4"}, 3),
        ({"SHARD_ABOVE": "2", "MAX_SHARDS": "2"}, 2),
    ],
    ids=["small", "as shipped", "large", "as many as may be"],
)
def test_a_large_month_is_requested_for_as_many_runs_as_its_size_is_worth(
    url: URL, home: Path, instance: dg.DagsterInstance, size: dict[str, str], shards: int | None
) -> None:
    engine = connect_engine(url, "a large month", connections=1)
    for _ in range(5):
        add_movement(engine, add_organization(engine), 100, "2026-05-10T10:00")
    engine.dispose()
    with patch.dict(os.environ, {f"TICKETFLOW_{name}": value for name, value in size.items()}):
        settings.cache_clear()
        [request] = requested(url, instance, "2026-06-02T03:00")
    assert isinstance(request, dg.RunRequest)
    shared = {"ops": {"monthly_settlement": {"config": {"shards": shards}}}}
    assert request.run_config == (shared if shards else {})


def test_it_ticks_from_day_2_at_5_every_day_of_every_month_through_both_clock_changes() -> None:
    madrid = ZoneInfo("Europe/Madrid")
    ticks = settlement_schedule.execution_timezone and [
        moment.astimezone(madrid)
        for moment, _ in zip(
            dg._utils.schedules.schedule_execution_time_iterator(
                instant("2026-01-01T00:00").timestamp(), settlement_schedule.cron_schedule, "Europe/Madrid"
            ),
            range(365 - 12),
            strict=False,
        )
    ]
    assert ticks
    assert all((moment.hour, moment.minute) == (5, 0) for moment in ticks)
    assert [moment.date() for moment in ticks] == [
        day for day in (instant("2026-01-01T12:00").date() + timedelta(days=n) for n in range(365)) if day.day != 1
    ]
