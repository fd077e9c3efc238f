"""Checks about money that are red are alerted, one alert a check, and named by health, until they are green."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg
import pytest
from sqlalchemy import Engine
from sqlalchemy.engine import URL

from schedules import audit_job
from sensors.failed_checks import standing_red
from tests.schedules.runs import resources
from tests.sensors.watch import Watch
from tests.support.alerted import kinds, told
from tests.support.homes import dagster_instance
from tests.support.rows import instant
from tests.support.sql_statements import execute
from ticketflow_orch.cli.health import _red_checks
from ticketflow_orch.definitions import build_definitions

AT = instant("2026-06-15T12:00")
WRONG = "2026-03: 1"


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dagster_instance() as instance:
        yield instance


@pytest.fixture
def watch(url: URL, instance: dg.DagsterInstance) -> Watch:
    return Watch(url, instance)


def judge(
    instance: dg.DagsterInstance,
    *,
    passed: bool,
    name: str = "complete",
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR,
) -> None:
    """Let a check of the settlement judge so."""
    key = dg.AssetKey("monthly_settlement")
    instance.report_runless_asset_event(
        dg.AssetCheckEvaluation(
            asset_key=key, check_name=name, passed=passed, severity=severity, description=WRONG, metadata={}
        )
    )


def test_what_the_daily_audit_finds_is_alerted_and_named_by_health_until_it_finds_it_no_more(
    engine: Engine, url: URL, instance: dg.DagsterInstance, watch: Watch
) -> None:
    audit = build_definitions(resources(url, AT)).resolve_job_def(audit_job.name)
    execute(engine, "ALTER TABLE ledger_entry DISABLE TRIGGER ledger_entry_append_only")
    assert audit.execute_in_process(instance=instance).success
    assert "CheckFailed monthly_settlement guarded" in watch.look("failed_checks", AT)
    [guarded] = [said for _, said in told(engine) if said["check"] == "guarded"]
    assert guarded["description"] == "trigger ledger_entry_append_only is missing or switched off"
    assert guarded["severity"] == "page"
    [line] = [line for line in _red_checks(instance) if "guarded" in line]
    assert line.startswith("check: monthly_settlement guarded is red since ")
    assert line.endswith("is missing or switched off; `ticketflow audit` says what to do, and audit_job judges again.")

    execute(engine, "ALTER TABLE ledger_entry ENABLE TRIGGER ledger_entry_append_only")
    assert audit.execute_in_process(instance=instance).success
    watch.look("failed_checks", AT)
    assert set(kinds(engine)) == {"CheckFailed", "AlertResolved"}
    assert list(_red_checks(instance)) == []


def test_a_check_that_stays_red_is_one_alert_until_it_is_green(
    engine: Engine, instance: dg.DagsterInstance, watch: Watch
) -> None:
    for _ in range(3):
        judge(instance, passed=False)
        watch.look("failed_checks", AT)
        assert watch.look("failed_checks", AT) == "All well."
    assert kinds(engine) == ["CheckFailed"]
    judge(instance, passed=True)
    watch.look("failed_checks", AT)
    assert kinds(engine) == ["CheckFailed", "AlertResolved"]
    judge(instance, passed=False)
    watch.look("failed_checks", AT)
    assert kinds(engine) == ["CheckFailed", "AlertResolved", "CheckFailed"]


def test_while_a_check_is_judged_anew_its_alert_stands(
    engine: Engine, url: URL, instance: dg.DagsterInstance, watch: Watch
) -> None:
    judge(instance, passed=False)
    watch.look("failed_checks", AT)
    instance.create_run_for_job(build_definitions(resources(url, AT)).resolve_job_def(audit_job.name))
    watch.look("failed_checks", AT)
    assert kinds(engine) == ["CheckFailed"]


def test_a_run_that_was_to_judge_a_check_and_died_takes_no_red_from_health(
    url: URL, instance: dg.DagsterInstance
) -> None:
    judge(instance, passed=False)
    run = instance.create_run_for_job(
        build_definitions(resources(url, AT)).resolve_job_def(audit_job.name), status=dg.DagsterRunStatus.STARTED
    )
    instance.report_run_failed(run, "the worker is gone")
    assert len(list(_red_checks(instance))) == 1
    judge(instance, passed=True)
    assert list(_red_checks(instance)) == []


def test_what_may_be_right_is_alerted_for_information_and_has_no_line_of_its_own(
    engine: Engine, instance: dg.DagsterInstance, watch: Watch
) -> None:
    judge(instance, passed=False, name="movements_plausible", severity=dg.AssetCheckSeverity.WARN)
    watch.look("failed_checks", AT)
    assert [said["severity"] for _, said in told(engine)] == ["info"]
    assert [one.description for one in standing_red(instance)] == [WRONG]
    assert list(_red_checks(instance)) == []
