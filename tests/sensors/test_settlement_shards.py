"""Further runs of a settlement: when they are requested, what one of them does and shows, and what is said of them."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pytest
from dagster._core.remote_origin import InProcessCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._core.storage.dagster_run import DagsterRun
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from sqlalchemy import Engine
from sqlalchemy.engine import URL

from resources import DatabaseResource
from schedules.housekeeping import PRUNED_JOBS
from sensors import settlement_shard_job, settlement_shards
from sensors.failed_runs import standing_failures
from sensors.settlement_shards import waiting_shards
from tests.schedules.runs import failure, shown
from tests.support.rows import add_movement, add_organization
from tests.support.settled import MARCH, ledger, settle
from tests.support.sql_statements import statements_sent
from ticketflow_orch.settlement.passes import begin_or_join, plan
from ticketflow_orch.settlement.posting import Pass

NOBODY = "No month is settled by several runs."
ASKED = {"dagster/sensor_name": "settlement_shards"}
STARTED, QUEUED, SUCCESS = dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.SUCCESS


@pytest.fixture
def database(url: URL) -> DatabaseResource:
    return DatabaseResource(url=url.render_as_string(hide_password=False))


def begin(engine: Engine, chunks: int) -> Pass:
    """A pass of March over so many organizations, in a chunk each."""
    for number in range(chunks):
        add_movement(engine, add_organization(engine), 100 * (number + 1), "2026-03-10T10:00")
    settlement, _ = begin_or_join(engine, MARCH)
    plan(engine, settlement, 1)
    return settlement


def add_run(
    instance: dg.DagsterInstance, job: str, status: dg.DagsterRunStatus, tags: dict[str, str], config: dict[str, Any]
) -> DagsterRun:
    """A run as an instance records it."""
    origin = RemoteRepositoryOrigin(InProcessCodeLocationOrigin(LoadableTargetOrigin()), "repository")
    run = DagsterRun(
        job_name=job, run_id=str(uuid.uuid4()), status=status, tags=tags, run_config={"ops": config},
        remote_job_origin=RemoteJobOrigin(origin, job),
    )  # fmt: skip
    return instance.run_storage.add_run(run)


def led(
    instance: dg.DagsterInstance, status: dg.DagsterRunStatus = STARTED, month: str = "2026-03", **config: Any
) -> DagsterRun:
    """A run that settles a month, as launched with this configuration."""
    tags = {"dagster/partition": month}
    return add_run(instance, "monthly_settlement_job", status, tags, {"monthly_settlement": {"config": config}})


def helping(instance: dg.DagsterInstance, status: dg.DagsterRunStatus) -> DagsterRun:
    """A further run of March, as the sensor asks for it."""
    tags = {"ticketflow/month": "2026-03", "ticketflow/pass": "1", "ticketflow/shard": "2"}
    return add_run(instance, settlement_shard_job.name, status, tags | ASKED, {})


def look(instance: dg.DagsterInstance, database: DatabaseResource) -> list[dg.RunRequest] | str:
    """The runs that the sensor requests, or why it skips."""
    with dg.build_sensor_context(instance=instance, resources={"database": database}) as context:
        data = settlement_shards.evaluate_tick(context)
    return data.skip_message or list(data.run_requests or [])


def help_out(database: DatabaseResource, instance: dg.DagsterInstance, **config: Any) -> dg.ExecuteInProcessResult:
    """A further run, as it is executed."""
    return settlement_shard_job.execute_in_process(
        instance=instance,
        resources={"database": database},
        run_config={"ops": {"settlement_shard": {"config": {"month": "2026-03", "settlement_pass": 1, **config}}}},
        raise_on_error=False,
    )


def test_a_run_is_requested_for_each_number_that_finds_work_with_the_options_of_the_leader(
    engine: Engine, instance: dg.DagsterInstance, database: DatabaseResource
) -> None:
    begin(engine, chunks=5)
    led(instance, shards=4, workers=1, chunk_pause=0.5)
    requests = look(instance, database)
    assert [dict(request.tags) for request in requests if isinstance(request, dg.RunRequest)] == [
        {"ticketflow/month": "2026-03", "ticketflow/pass": "1", "ticketflow/shard": str(number)} | ASKED
        for number in (2, 3, 4)
    ]
    for request in requests:
        assert isinstance(request, dg.RunRequest)
        assert request.run_config == {
            "ops": {
                "settlement_shard": {
                    "config": {"month": "2026-03", "settlement_pass": 1, "workers": 1, "chunk_pause": 0.5}
                }
            }
        }
        assert request.partition_key is None, "the leader alone materializes the month"


def test_a_number_is_requested_under_one_key_for_each_pass(
    engine: Engine, instance: dg.DagsterInstance, database: DatabaseResource
) -> None:
    begin(engine, chunks=5)
    led(instance, shards=3, workers=1)
    first, again = ([request.run_key for request in look(instance, database)] for _ in range(2))  # type: ignore[union-attr]
    assert first == again
    assert len(set(first)) == 2


def test_nothing_is_requested_when_there_are_no_more_chunks_than_workers(
    engine: Engine, instance: dg.DagsterInstance, database: DatabaseResource
) -> None:
    begin(engine, chunks=4)
    led(instance, shards=2, workers=2)
    assert look(instance, database) == "Nothing to spare in 2026-03: no more chunks are left than there are workers."


def test_nothing_is_requested_before_the_pass_is_planned_or_when_it_has_ended(
    engine: Engine, instance: dg.DagsterInstance, database: DatabaseResource
) -> None:
    led(instance, shards=4, workers=1)
    assert str(look(instance, database)).startswith("Nothing to spare")
    begin(engine, chunks=5)
    settle(engine)
    assert str(look(instance, database)).startswith("Nothing to spare")


@pytest.mark.parametrize(
    ("status", "config"),
    [
        (STARTED, {}),
        (STARTED, {"shards": 1}),
        (STARTED, {"shards": 1000}),
        (STARTED, {"shards": 4, "workers": 0}),
        (QUEUED, {"shards": 4}),
    ],
    ids=["by default", "one", "too many", "without workers", "not begun"],
)
def test_a_month_that_nobody_shares_is_left_to_its_run(
    engine: Engine,
    instance: dg.DagsterInstance,
    database: DatabaseResource,
    status: dg.DagsterRunStatus,
    config: dict[str, Any],
) -> None:
    begin(engine, chunks=5)
    led(instance, status, **config)
    assert look(instance, database) == NOBODY


def test_where_no_month_is_shared_the_database_is_not_asked(
    engine: Engine, instance: dg.DagsterInstance, database: DatabaseResource
) -> None:
    begin(engine, chunks=5)
    led(instance)
    with statements_sent() as statements:
        assert look(instance, database) == NOBODY
    assert statements == []


def test_a_further_run_does_its_share_and_shows_it(
    engine: Engine, instance: dg.DagsterInstance, database: DatabaseResource
) -> None:
    begin(engine, chunks=3)
    result = help_out(database, instance, workers=1)
    metadata = shown(result)
    assert (metadata["month"], metadata["pass"], metadata["chunks"], metadata["organizations"]) == ("2026-03", 1, 3, 3)
    [hand] = metadata["who did what"].records
    assert (hand.data["run"], hand.data["chunks"]) == (result.run_id, 3)
    assert len(ledger(engine)) == 3
    assert not result.get_asset_materialization_events()


def test_a_further_run_that_comes_late_succeeds_and_says_so(
    engine: Engine, instance: dg.DagsterInstance, database: DatabaseResource
) -> None:
    add_organization(engine)
    settle(engine)
    assert shown(help_out(database, instance))["summary"] == "Nothing was done. Pass 1 of 2026-03 has ended."


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"month": "March"}, "'March' is not a month"),
        ({"workers": 0}, "workers: 0 is refused; write a number from 1 to 32."),
        ({"chunk_pause": -1.0}, "chunk_pause: -1.0 is refused; write a number from 0 to 3,600."),
    ],
    ids=str,
)
def test_a_further_run_that_makes_no_sense_fails_with_a_sentence(
    engine: Engine,
    instance: dg.DagsterInstance,
    database: DatabaseResource,
    config: dict[str, Any],
    sentence: str,
) -> None:
    assert sentence in failure(help_out(database, instance, **config))


def test_further_runs_go_with_the_records_of_the_past() -> None:
    assert settlement_shard_job.name in PRUNED_JOBS


def test_a_further_run_that_failed_is_made_up_for_by_the_month(instance: dg.DagsterInstance) -> None:
    failed = helping(instance, STARTED)
    leader = led(instance)
    instance.report_run_failed(failed)
    since = datetime.now(UTC) - timedelta(hours=1)
    assert [one.run_id for one in standing_failures(instance, since)] == [failed.run_id]
    led(instance, SUCCESS, month="2026-02")
    assert [one.run_id for one in standing_failures(instance, since)] == [failed.run_id]
    instance.report_dagster_event(dg.DagsterEvent("PIPELINE_SUCCESS", leader.job_name), leader.run_id)
    assert list(standing_failures(instance, since)) == []


def test_further_runs_that_never_get_their_turn_are_named_and_others_are_not(instance: dg.DagsterInstance) -> None:
    soon, later = datetime.now(UTC), datetime.now(UTC) + timedelta(minutes=11)
    led(instance, shards=3)
    assert list(waiting_shards(instance, later)) == [], "none was asked for, since there is nothing to spare"
    helping(instance, QUEUED)
    assert list(waiting_shards(instance, soon)) == []
    [line] = waiting_shards(instance, later)
    assert line.startswith("2026-03: 1 further runs of its settlement have been queued since ")
    assert "raise the limit of the pool settlement_shards" in line
    helping(instance, STARTED)
    assert list(waiting_shards(instance, later)) == [], "one is at work, and others come after it"
