"""Housekeeping in Dagster: whose runs go, whose stay, and that a tick costs what it does on a fresh instance."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.remote_origin import InProcessCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._core.storage.dagster_run import DagsterRun
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from sqlalchemy import Engine, event, text
from sqlalchemy.engine import URL

from resources import ClockResource, DatabaseResource
from schedules.dagster_records import delete_ended_runs, delete_evaluation_logs, delete_reports
from schedules.expire_reservations import expire_reservations_job
from schedules.housekeeping import PRUNED_JOBS, clean_up, housekeeping_job, housekeeping_schedule
from schedules.settlement import monthly_settlement_job
from tests.support.homes import bootstrapped, dagster_storage
from tests.support.rows import instant
from tests.support.sql_statements import execute
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.settings import settings

NOW = datetime.now(UTC)
EXPIRY = expire_reservations_job.name
# Deleting a run takes Dagster four sessions, so the suite makes do with some hundred; MANY_RUNS=10000 asks for more.
MANY = int(os.environ.get("MANY_RUNS", "200"))


@pytest.fixture
def storage(server: EmbeddedServer, url: URL) -> Iterator[URL]:
    """The URL of a database for Dagster's storage that does not exist yet."""
    with dagster_storage(server, url) as storage:
        yield storage


@pytest.fixture
def instance(scratch: Path, url: URL, storage: URL) -> Iterator[dg.DagsterInstance]:
    """A bootstrapped instance whose storage is Postgres."""
    with bootstrapped(scratch, url, storage) as instance:
        yield instance


def add_run(instance: dg.DagsterInstance, job: str, status: dg.DagsterRunStatus = dg.DagsterRunStatus.SUCCESS) -> str:
    """A run with an event and a tag, as an instance records it."""
    run = DagsterRun(
        job_name=job, run_id=str(uuid.uuid4()), status=status, tags={"ticketflow/scheduled_for": "then"},
        remote_job_origin=RemoteJobOrigin(
            RemoteRepositoryOrigin(InProcessCodeLocationOrigin(LoadableTargetOrigin()), "repository"), job
        ),
    )  # fmt: skip
    instance.run_storage.add_run(run)
    instance.report_engine_event("it ran", run)
    return run.run_id


def multiply(storage: URL, times: int) -> None:
    """Copy the one run that is there, with its tag and event, until there are `times` as many."""
    engine = connect_engine(storage, "pytest multiplies runs", connections=1)
    execute(
        engine,
        """
        WITH copy AS MATERIALIZED (
            SELECT runs.*, CAST(gen_random_uuid() AS text) AS copy_id FROM runs, generate_series(2, :times)
        ), copied AS (
            INSERT INTO runs (run_id, pipeline_name, status, run_body, create_timestamp)
            SELECT copy_id, pipeline_name, status, replace(run_body, run_id, copy_id), create_timestamp FROM copy
        ), tagged AS (
            INSERT INTO run_tags (run_id, key, value)
            SELECT copy_id, key, value FROM copy JOIN run_tags USING (run_id)
        )
        INSERT INTO event_logs (run_id, event, dagster_event_type, timestamp)
        SELECT copy_id, replace(event, run_id, copy_id), dagster_event_type, timestamp
        FROM copy JOIN event_logs USING (run_id)
        """,
        times=times,
    )
    engine.dispose()


def age(storage: URL, *run_ids: str, days: int) -> None:
    """Make the runs, or all runs, that old."""
    engine = connect_engine(storage, "pytest ages runs", connections=1)
    execute(
        engine,
        f"UPDATE runs SET create_timestamp = now() AT TIME ZONE 'UTC' - interval '{days} days'"
        + (" WHERE run_id = ANY (:ids)" if run_ids else ""),
        **({"ids": list(run_ids)} if run_ids else {}),
    )
    engine.dispose()


def rows(storage: URL) -> dict[str, int]:
    """How many rows of Dagster's own tables there are."""
    engine = connect_engine(storage, "pytest counts", connections=1)
    with engine.connect() as connection:
        counted = {
            table: connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()
            for table in ("runs", "run_tags", "event_logs")
        }
    engine.dispose()
    return counted


def queries_of_a_tick(instance: dg.DagsterInstance) -> int:
    """How many statements the evaluation of a schedule's tick sends to any database."""
    sent: list[str] = []

    def remember(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        sent.append(statement)

    event.listen(Engine, "before_cursor_execute", remember)
    try:
        at = instant("2026-06-02T04:00")
        with dg.build_schedule_context(instance=instance, scheduled_execution_time=at) as tick:
            assert housekeeping_schedule.evaluate_tick(tick).run_requests
    finally:
        event.remove(Engine, "before_cursor_execute", remember)
    return len(sent)


def test_after_many_runs_and_a_pass_the_instance_holds_what_retention_says_and_ticks_as_before(
    instance: dg.DagsterInstance, storage: URL
) -> None:
    fresh = queries_of_a_tick(instance)
    add_run(instance, EXPIRY)
    multiply(storage, MANY)
    age(storage, days=15)
    assert rows(storage) == {"runs": MANY, "run_tags": 2 * MANY, "event_logs": MANY}
    recent = [add_run(instance, EXPIRY) for _ in range(3)]

    assert delete_ended_runs(instance, PRUNED_JOBS, NOW - timedelta(days=14)) == MANY
    assert {run.run_id for run in instance.get_runs()} == set(recent)
    assert rows(storage) == {"runs": 3, "run_tags": 6, "event_logs": 3}
    assert queries_of_a_tick(instance) == fresh


def test_runs_of_months_and_runs_that_have_not_ended_stay_however_old(
    instance: dg.DagsterInstance, storage: URL
) -> None:
    kept = [
        add_run(instance, monthly_settlement_job.name),
        add_run(instance, "__ASSET_JOB"),
        add_run(instance, EXPIRY, dg.DagsterRunStatus.QUEUED),
        add_run(instance, EXPIRY, dg.DagsterRunStatus.STARTED),
    ]
    age(storage, days=400)
    assert delete_ended_runs(instance, PRUNED_JOBS, NOW) == 0
    assert {run.run_id for run in instance.get_runs()} == set(kept)


def test_the_logs_of_a_run_go_with_it(instance: dg.DagsterInstance, storage: URL) -> None:
    old = add_run(instance, EXPIRY)
    age(storage, days=15)
    log = Path(instance.storage_directory()) / old / "compute_logs" / "any.err"
    log.parent.mkdir(parents=True)
    log.write_text("said\n")
    assert delete_ended_runs(instance, [EXPIRY], NOW) == 1
    assert not log.parents[1].exists()


def test_a_claim_stays_as_long_as_a_run_of_its_window(
    engine: Engine, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = (NOW - timedelta(days=100)).isoformat(timespec="seconds")
    execute(
        engine,
        """
        INSERT INTO job_execution (job, idempotency_key, state, owner, finished_at)
        VALUES ('expire_reservations', :key, 'COMPLETED', 'nobody', now())
        """,
        key=key,
    )
    monkeypatch.setenv("TICKETFLOW_RUNS_KEPT", "P101D")
    settings.cache_clear()
    assert clean_up(engine, instance)["claims"] == 0
    monkeypatch.setenv("TICKETFLOW_RUNS_KEPT", "P99D")
    settings.cache_clear()
    assert clean_up(engine, instance)["claims"] == 1


def test_the_job_deletes_what_is_old_once_a_window_and_shows_how_much(
    engine: Engine, url: URL, instance: dg.DagsterInstance, storage: URL
) -> None:
    add_run(instance, EXPIRY)
    age(storage, days=15)
    execute(
        engine,
        """
        INSERT INTO job_execution (job, idempotency_key, state, owner, finished_at)
        VALUES ('expire_reservations', '2020-01-01T00:00:00+00:00', 'COMPLETED', 'nobody', now()),
            ('close_events', '2020-01-01T02:30:00+00:00', 'COMPLETED', 'nobody', now())
        """,
    )
    database = DatabaseResource(url=url.render_as_string(hide_password=False))
    window = {"ticketflow/scheduled_for": "2026-06-02T04:00:00+00:00"}
    shown = []
    for _ in range(2):
        result = housekeeping_job.execute_in_process(
            instance=instance, resources={"database": database, "clock": ClockResource()}, tags=window
        )
        [done] = [one for one in result.all_events if one.is_successful_output]
        shown.append({name: value.value for name, value in done.step_output_data.metadata.items()})

    assert {"status": "done", "runs": 1, "claims": 1, "firings": 0, "outbox events": 0}.items() <= shown[0].items()
    assert {"status": "repeated", "runs": 1}.items() <= shown[1].items()
    with engine.connect() as connection:
        kept = connection.execute(text("SELECT job FROM job_execution ORDER BY job")).scalars().all()
    assert kept == ["close_events", "housekeeping"]


def report(instance: dg.DagsterInstance, *, partition: str | None = None) -> None:
    """What a sensor reports by itself: an observation, a check, and the board."""
    key = dg.AssetKey("outbox")
    if partition is None:
        instance.report_runless_asset_event(dg.AssetObservation(key))
        check = dg.AssetCheckEvaluation(key, "is_delivered", passed=True, metadata={})
        instance.report_runless_asset_event(check)
    instance.report_runless_asset_event(dg.AssetMaterialization(key, partition=partition))


def age_reports(storage: URL, days: int) -> None:
    engine = connect_engine(storage, "pytest ages reports", connections=1)
    for table, column in (("event_logs", "timestamp"), ("asset_check_executions", "evaluation_event_timestamp")):
        execute(engine, f"UPDATE {table} SET {column} = {column} - interval '{days} days'")
    engine.dispose()


def test_what_sensors_reported_goes_but_for_the_last_of_each_and_what_is_about_a_month(
    instance: dg.DagsterInstance, storage: URL
) -> None:
    for _ in range(3):
        report(instance)
    report(instance, partition="2026-01")
    # One observation, check and materialization of each of the first two, and the rows of their checks.
    age_reports(storage, 15)
    assert delete_reports(instance, NOW - timedelta(days=14)) == 2 * 4
    assert delete_reports(instance, NOW - timedelta(days=14)) == 0
    records = instance.fetch_materializations(dg.AssetKey("outbox"), limit=10).records
    assert [record.partition_key for record in records] == ["2026-01", None]
    assert len(instance.fetch_observations(dg.AssetKey("outbox"), limit=10).records) == 1
    check = dg.AssetCheckKey(dg.AssetKey("outbox"), "is_delivered")
    assert len(instance.event_log_storage.get_asset_check_execution_history(check, limit=10)) == 1


def test_what_checks_found_goes_with_its_run_but_for_the_last_of_each(
    instance: dg.DagsterInstance, storage: URL
) -> None:
    @dg.asset_check(asset="outbox")
    def is_delivered() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=True)

    job = dg.Definitions(
        asset_checks=[is_delivered],
        jobs=[dg.define_asset_job("audit_job", dg.AssetSelection.checks(is_delivered))],
    ).resolve_job_def("audit_job")
    for _ in range(3):
        assert job.execute_in_process(instance=instance).success
    age(storage, days=15)
    check = dg.AssetCheckKey(dg.AssetKey("outbox"), "is_delivered")
    [last, *_] = instance.event_log_storage.get_asset_check_execution_history(check, limit=10)
    assert delete_ended_runs(instance, PRUNED_JOBS, NOW) == 3
    assert instance.event_log_storage.get_asset_check_execution_history(check, limit=10) == [last]


def test_what_sensors_reported_lately_stays(instance: dg.DagsterInstance, storage: URL) -> None:
    report(instance)
    report(instance)
    age_reports(storage, 13)
    assert delete_reports(instance, NOW - timedelta(days=14)) == 0


def test_what_evaluations_logged_long_ago_goes(instance: dg.DagsterInstance) -> None:
    logs = Path(instance.root_directory) / "storage" / "__repository__" / "outbox_watch"
    other = logs.parent / "somebody_elses"
    for folder in (logs, other):
        folder.mkdir(parents=True)
        for name, days in (("old.err", 15), ("recent.err", 13)):
            (folder / name).write_text("said\n")
            os.utime(folder / name, (NOW.timestamp() - days * 86_400,) * 2)
    assert delete_evaluation_logs(instance, ["outbox_watch"], NOW - timedelta(days=14)) == 1
    assert [file.name for file in logs.iterdir()] == ["recent.err"]
    assert len(list(other.iterdir())) == 2


def test_a_part_that_fails_keeps_no_other_from_being_done_and_is_named(
    engine: Engine, instance: dg.DagsterInstance, storage: URL
) -> None:
    add_run(instance, EXPIRY)
    age(storage, days=15)
    execute(engine, "DROP FUNCTION alert_prune(timestamptz, bigint)")
    with pytest.raises(dg.Failure, match="Not deleted: alerts: function alert_prune") as failed:
        clean_up(engine, instance)
    assert "All else was" in str(failed.value.description)
    assert instance.get_runs() == []
