"""The audit by the clock: once a day, all checks about money, though nothing else runs."""

from __future__ import annotations

import dagster as dg
from sqlalchemy import Engine
from sqlalchemy.engine import URL

from schedules import audit_job, audit_schedule
from tests.schedules.runs import resources
from tests.support.asset_runs import checks_of
from tests.support.books import MARCH, settle_and_close
from tests.support.homes import dagster_instance
from tests.support.rows import add_movement, add_organization, instant
from tests.support.settled import tamper
from ticketflow_orch.definitions import build_definitions
from ticketflow_orch.jobs.firings import SCHEDULED_FOR

AT = instant("2026-06-15T12:00")


def test_a_fault_in_a_closed_month_is_seen_though_nothing_else_runs(engine: Engine, url: URL) -> None:
    add_movement(engine, add_organization(engine), 100, "2026-03-10T10:00")
    settle_and_close(engine, MARCH)
    tamper(engine, "UPDATE ledger_entry SET captures = captures + 1, net = net + 1")
    job = build_definitions(resources(url, AT)).resolve_job_def(audit_job.name)
    with dagster_instance() as instance:
        result = job.execute_in_process(instance=instance)
    judged = checks_of(result)
    assert {name for name, (passed, _) in judged.items() if not passed} == {
        "ledger_reconciles", "closed_months_unchanged", "all_fits_together",
    }  # fmt: skip
    assert {"complete", "honest", "guarded", "paid_what_is_payable", "statements_add_up"} < set(judged)
    assert not result.get_asset_materialization_events()


def test_every_tick_requests_a_run_unless_one_is_at_work(url: URL) -> None:
    tick = instant("2026-06-15T05:30")
    repository = build_definitions(resources(url, AT)).get_repository_def()
    with dagster_instance() as instance:
        context = dg.build_schedule_context(instance, scheduled_execution_time=tick, repository_def=repository)
        request = audit_schedule(context)
        assert isinstance(request, dg.RunRequest)
        assert request.tags[SCHEDULED_FOR] == tick.isoformat(timespec="seconds")
        instance.create_run_for_job(
            repository.get_job(audit_job.name), status=dg.DagsterRunStatus.STARTED, tags=request.tags
        )
        skipped = audit_schedule(context)
        assert isinstance(skipped, dg.SkipReason)
        assert "is still started" in str(skipped.skip_message)
