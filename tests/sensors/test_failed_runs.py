"""Runs that fail are told, one alert a job with the first line of the error, until a later run makes up for them."""

from __future__ import annotations

import functools
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pytest
from dagster._core.storage.runs.schema import RunsTable
from sqlalchemy import Engine
from sqlalchemy.engine import URL

from resources import DatabaseResource
from schedules import monthly_settlement_job
from sensors.failed_runs import standing_failures
from tests.schedules.runs import Office
from tests.sensors.watch import Watch
from tests.support.alerted import kinds, told
from tests.support.cuts import fail
from tests.support.sql_statements import execute
from ticketflow_orch.cli.health import _failed_runs
from ticketflow_orch.definitions import build_definitions
from ticketflow_orch.jobs.firings import window_tags
from ticketflow_orch.jobs.unfinished import unfinished_windows

AT = datetime(2026, 6, 2, 4, tzinfo=UTC)
RETRIED = {"dagster/will_retry": "true", "dagster/auto_retry_run_id": "another"}
RULE = "RAISE EXCEPTION E'replica identity missing\\nDETAIL: of buyer@example.com' USING ERRCODE = '55000'"


@pytest.fixture
def watch(url: URL, instance: dg.DagsterInstance) -> Watch:
    watch = Watch(url, instance)
    watch.look("failed_runs", AT)
    return watch


@pytest.fixture
def office(url: URL, instance: dg.DagsterInstance) -> Office:
    return Office(url, instance)


def test_a_failed_run_is_told_once_with_its_window_and_the_first_line_of_its_error(
    engine: Engine, watch: Watch, office: Office
) -> None:
    fail(engine, "DELETE", "job_firing", RULE, times=1000)
    failed = office.attempt("housekeeping_job", AT, window_tags(AT))
    assert watch.look("failed_runs", AT).startswith("Alerted: RunFailed housekeeping ")
    assert watch.look("failed_runs", AT) == "All well."
    [(kind, said)] = told(engine)
    assert (kind, said["job"], said["run_id"], said["scheduled_for"]) == (
        "RunFailed", "housekeeping", failed.run_id, AT.isoformat(),
    )  # fmt: skip
    assert "replica identity missing" in said["error"]
    assert said["severity"] == "ticket"


def test_a_day_later_it_is_still_one_alert_and_it_is_over_when_a_run_succeeds(
    engine: Engine, watch: Watch, office: Office
) -> None:
    fail(engine, "DELETE", "job_firing", RULE, times=1000)
    for days in range(2):
        office.attempt("housekeeping_job", AT, window_tags(AT + timedelta(days=days)))
        watch.look("failed_runs", AT)
    assert kinds(engine) == ["RunFailed"]
    execute(engine, "DROP TRIGGER fail ON job_firing")
    office.run("housekeeping_job", AT + timedelta(days=2))
    watch.look("failed_runs", AT)
    assert kinds(engine) == ["RunFailed", "AlertResolved"]


def test_a_window_that_nobody_completes_is_a_line_of_health_until_a_later_one_is(
    engine: Engine, instance: dg.DagsterInstance, office: Office
) -> None:
    fail(engine, "DELETE", "job_firing", RULE, times=1000)
    failed = office.attempt("housekeeping_job", AT, window_tags(AT))
    [line] = _failed_runs(engine, instance)
    assert line.startswith(f"housekeeping: the window {AT.isoformat()} is not completed, run {failed.run_id} failed: ")
    assert "replica identity missing" in line
    assert "buyer@example.com" not in line
    execute(engine, "DROP TRIGGER fail ON job_firing")
    office.run("housekeeping_job", AT + timedelta(days=1))
    assert list(_failed_runs(engine, instance)) == []


def test_a_window_that_is_being_worked_on_is_no_line_of_health(engine: Engine) -> None:
    execute(
        engine,
        """
        INSERT INTO job_firing (job, scheduled_for, host, pid, run_id, outcome, fired_at)
        VALUES ('close_events', '2026-06-02Z', 'host', 1, 'run-1', 'ACCEPTED', clock_timestamp() - interval '1 hour')
        """,
    )
    with engine.connect() as connection:
        assert [one.run_id for one in unfinished_windows(connection, ["close_events"])] == ["run-1"]
    execute(
        engine,
        """
        INSERT INTO job_execution (job, idempotency_key, state, owner, lease_until)
        VALUES ('close_events', '2026-06-02T00:00:00+00:00', 'PROCESSING', 'me', clock_timestamp() + interval '1 min')
        """,
    )
    with engine.connect() as connection:
        assert unfinished_windows(connection, ["close_events"]) == ()


def test_a_months_failure_is_made_up_for_by_a_run_of_that_month_and_by_no_other(
    engine: Engine, instance: dg.DagsterInstance
) -> None:
    failed_run(instance, "2026-03")
    ended(instance, "2026-04", dg.DagsterRunStatus.SUCCESS)
    [one] = standing_failures(instance, datetime.now(UTC) - timedelta(hours=1))
    assert (one.work, one.partition, one.error) == ("monthly_settlement", "2026-03", "the worker is gone")
    [line] = _failed_runs(engine, instance)
    assert line.startswith(f"monthly_settlement: run {one.run_id} for 2026-03 failed: the worker is gone; ")
    ended(instance, "2026-03", dg.DagsterRunStatus.SUCCESS)
    assert list(standing_failures(instance, datetime.now(UTC) - timedelta(hours=1))) == []


def test_a_failure_that_another_run_is_started_for_anyway_is_not_told(
    engine: Engine, instance: dg.DagsterInstance, watch: Watch
) -> None:
    failed_run(instance, "2026-03", **{"dagster/will_retry": "true"})
    assert watch.look("failed_runs", AT) == "All well."
    failed_run(instance, "2026-03", **{"dagster/will_retry": "false"})
    assert watch.look("failed_runs", AT).startswith("Alerted: RunFailed monthly_settlement ")


def test_a_failure_that_nothing_was_started_for_after_all_is_told(
    engine: Engine, instance: dg.DagsterInstance, watch: Watch
) -> None:
    a_while_ago = datetime.now(UTC) - timedelta(minutes=4)
    run = failed_run(instance, "2026-03", **{"dagster/will_retry": "true"})
    written(instance, run, a_while_ago)
    written(instance, failed_run(instance, "2026-04", **RETRIED), a_while_ago)
    assert [one.run_id for one in standing_failures(instance, a_while_ago - timedelta(hours=1))] == [run.run_id]
    assert watch.look("failed_runs", AT).startswith("Alerted: RunFailed monthly_settlement ")
    assert [said["partition"] for _, said in told(engine)] == ["2026-03"]


def test_a_run_that_somebody_launched_is_told_for_their_information_and_is_no_line_of_health(
    engine: Engine, instance: dg.DagsterInstance, watch: Watch
) -> None:
    run = ended(instance, "2026-03", dg.DagsterRunStatus.STARTED, scheduled=False)
    instance.report_run_failed(run, "the worker is gone")
    watch.look("failed_runs", AT)
    [(_, said)] = told(engine)
    assert (said["severity"], said["subject"]) == ("info", "monthly_settlement by hand")
    assert list(_failed_runs(engine, instance)) == []


def test_what_failed_while_nobody_could_look_is_told_and_stands(
    engine: Engine, instance: dg.DagsterInstance, watch: Watch
) -> None:
    watch.seen_until("failed_runs", datetime.now(UTC) - timedelta(hours=2))
    written(instance, failed_run(instance, "2026-03"), datetime.now(UTC) - timedelta(hours=1))
    for _ in range(2):
        watch.look("failed_runs", AT)
    assert kinds(engine) == ["RunFailed"]
    ended(instance, "2026-03", dg.DagsterRunStatus.SUCCESS)
    watch.look("failed_runs", AT)
    assert kinds(engine) == ["RunFailed", "AlertResolved"]


def test_a_clock_that_was_ahead_blinds_nobody_once_it_is_right(
    engine: Engine, instance: dg.DagsterInstance, watch: Watch
) -> None:
    written(instance, failed_run(instance, "2026-03"), datetime.now(UTC) + timedelta(days=1))
    watch.look("failed_runs", AT)
    failed_run(instance, "2026-04", scheduled=False)
    watch.look("failed_runs", AT)
    assert [said["partition"] for _, said in told(engine)] == ["2026-03", "2026-04"]


def test_however_many_failed_at_once_each_is_found(
    engine: Engine, instance: dg.DagsterInstance, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[standing_failures.__module__], "_AT_ONCE", 3)
    watch.look("failed_runs", AT)
    failed_run(instance, "2026-03")
    watch.look("failed_runs", AT)
    for _ in range(7):
        failed_run(instance, "2026-04", scheduled=False)
    failed_run(instance, "2026-05")
    watch.look("failed_runs", AT)
    assert [one.partition for one in standing_failures(instance, datetime.now(UTC) - timedelta(hours=1))] == [
        "2026-03", "2026-05",
    ]  # fmt: skip
    assert kinds(engine) == ["RunFailed", "RunFailed"]
    assert len(list(_failed_runs(engine, instance))) == 2


def test_a_range_is_made_up_for_by_runs_of_all_of_its_months(instance: dg.DagsterInstance) -> None:
    def standing() -> int:
        return len(list(standing_failures(instance, datetime.now(UTC) - timedelta(hours=1))))

    first, last = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
    run = ended(instance, None, dg.DagsterRunStatus.STARTED, **{first: "2026-01", last: "2026-03"})
    instance.report_run_failed(run, "the worker is gone")
    for months in ({first: "2025-12", last: "2026-01"}, {first: "2026-03", last: "2026-04"}):
        ended(instance, None, dg.DagsterRunStatus.SUCCESS, **months)
        assert standing() == 1
    ended(instance, "2026-02", dg.DagsterRunStatus.SUCCESS)
    assert standing() == 0


def test_what_made_up_for_a_failure_is_found_behind_any_number_of_others(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[standing_failures.__module__], "_AT_ONCE", 3)
    failed_run(instance, "2026-03")
    ended(instance, "2026-03", dg.DagsterRunStatus.SUCCESS)
    for _ in range(7):
        ended(instance, "2026-04", dg.DagsterRunStatus.SUCCESS)
    assert list(standing_failures(instance, datetime.now(UTC) - timedelta(hours=1))) == []


def failed_run(instance: dg.DagsterInstance, month: str, **options: Any) -> dg.DagsterRun:
    run = ended(instance, month, dg.DagsterRunStatus.STARTED, **options)
    instance.report_run_failed(run, "the worker is gone\nand more")
    return run


def written(instance: dg.DagsterInstance, run: dg.DagsterRun, at: datetime) -> None:
    """Let the record of `run` have been written last at that instant."""
    with instance.run_storage.connect() as connection:  # type: ignore[attr-defined]
        connection.execute(
            RunsTable.update().where(RunsTable.c.run_id == run.run_id).values(update_timestamp=at.replace(tzinfo=None))
        )


def ended(
    instance: dg.DagsterInstance,
    month: str | None,
    status: dg.DagsterRunStatus,
    *,
    scheduled: bool = True,
    **tags: str,
) -> dg.DagsterRun:
    window = window_tags(AT) if scheduled else {}
    partition = {"dagster/partition": month} if month else {}
    return instance.create_run_for_job(
        location().resolve_job_def(monthly_settlement_job.name),
        tags={**partition, **window, **tags},
        status=status,
    )


@functools.cache
def location() -> dg.Definitions:
    return build_definitions({"database": DatabaseResource(url="postgresql:///any")})
