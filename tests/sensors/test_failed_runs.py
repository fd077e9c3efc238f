"""Runs that fail are told, one alert a job with the first line of the error, until a later run makes up for them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pytest
from sqlalchemy import Engine
from sqlalchemy.engine import URL

from resources import DatabaseResource
from schedules import monthly_settlement_job
from sensors.failed_runs import standing_failures
from tests.alerted import kinds, told
from tests.cuts import fail
from tests.homes import dagster_instance
from tests.schedules.runs import Office
from tests.sensors.watch import Watch
from tests.statements import execute
from ticketflow_orch.cli.health import _failed_runs
from ticketflow_orch.definitions import build_definitions
from ticketflow_orch.firings import window_tags
from ticketflow_orch.unfinished import unfinished_windows

AT = datetime(2026, 6, 2, 4, tzinfo=UTC)
RULE = "RAISE EXCEPTION E'replica identity missing\\nDETAIL: of buyer@example.com' USING ERRCODE = '55000'"


@pytest.fixture(scope="module")
def shared() -> Iterator[dg.DagsterInstance]:
    with dagster_instance() as instance:
        yield instance


@pytest.fixture
def instance(shared: dg.DagsterInstance) -> Iterator[dg.DagsterInstance]:
    """Shared, since it is dear; without runs."""
    yield shared
    for run in shared.get_runs():
        shared.delete_run(run.run_id)


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


def test_a_run_that_somebody_launched_is_told_for_their_information_and_is_no_line_of_health(
    engine: Engine, instance: dg.DagsterInstance, watch: Watch
) -> None:
    run = ended(instance, "2026-03", dg.DagsterRunStatus.STARTED, scheduled=False)
    instance.report_run_failed(run, "the worker is gone")
    watch.look("failed_runs", AT)
    [(_, said)] = told(engine)
    assert (said["severity"], said["subject"]) == ("info", "monthly_settlement by hand")
    assert list(_failed_runs(engine, instance)) == []


def failed_run(instance: dg.DagsterInstance, month: str, **tags: str) -> None:
    run = ended(instance, month, dg.DagsterRunStatus.STARTED, **tags)
    instance.report_run_failed(run, "the worker is gone\nand more")


def ended(
    instance: dg.DagsterInstance, month: str, status: dg.DagsterRunStatus, *, scheduled: bool = True, **tags: Any
) -> dg.DagsterRun:
    location = build_definitions({"database": DatabaseResource(url="postgresql:///any")})
    window = window_tags(AT) if scheduled else {}
    return instance.create_run_for_job(
        location.resolve_job_def(monthly_settlement_job.name),
        tags={"dagster/partition": month, **window, **tags},
        status=status,
    )
