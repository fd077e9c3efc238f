"""Housekeeping: every day, what is over and done with goes, from TicketFlow's tables and from Dagster's own."""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial

import dagster as dg
from sqlalchemy import Engine

from resources import DatabaseResource
from schedules.dagster_records import delete_ended_runs, delete_evaluation_logs, delete_reports
from schedules.windows import DAILY_JOB, claimed_window, still_running, window_request
from ticketflow_orch.db.engine import PATIENCE
from ticketflow_orch.db.errors import in_words
from ticketflow_orch.db.retrying import retried
from ticketflow_orch.jobs.intervals import (
    AUDIT,
    CLOSE_EVENTS,
    EXPIRE_RESERVATIONS,
    HOUSEKEEPING,
    REDRIVE_OUTBOX,
    RELAY_OUTBOX,
    SEND_REMINDERS,
    SETTLEMENT_SHARD,
)
from ticketflow_orch.monitoring.retention import STEPS, RetentionRules
from ticketflow_orch.settings import settings

# Only those whose windows come by the minute: a day's or a month's claim is kept for ever.
MINUTE_OPS = (EXPIRE_RESERVATIONS.name, SEND_REMINDERS.name)
# Runs of all other jobs stay: those that materialize a month are how the UI knows that it is settled.
PRUNED_JOBS = tuple(
    job.dagster_name
    for job in (
        CLOSE_EVENTS,
        EXPIRE_RESERVATIONS,
        SEND_REMINDERS,
        HOUSEKEEPING,
        AUDIT,
        RELAY_OUTBOX,
        SETTLEMENT_SHARD,
        REDRIVE_OUTBOX,
    )
)


@dg.op(pool=HOUSEKEEPING.pool, tags={"kind": "postgres"})
def housekeeping(context: dg.OpExecutionContext, database: DatabaseResource) -> None:
    """Apply the retention: to Dagster's runs, reports and logs, to our events, firings, claims and reminders."""
    with (
        database.engine(f"housekeeping/{context.run_id}", patience=PATIENCE) as engine,
        claimed_window(context, engine) as window,
    ):
        if window.is_ours:
            window.complete(retried(engine, lambda: clean_up(engine, context.instance)))


@dg.job(tags=DAILY_JOB, description="Deletes what is older than retention allows.")
def housekeeping_job() -> None:
    """One run per window."""
    housekeeping()


@dg.schedule(
    job=housekeeping_job,
    cron_schedule=HOUSEKEEPING.cron,
    execution_timezone=settings().business_timezone,
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Every day at 06:00.",
    metadata={
        "window": "what is older than TICKETFLOW_RUNS_KEPT and TICKETFLOW_RECORDS_KEPT",
        "repeat": "nothing: what is deleted is gone",
    },
)
def housekeeping_schedule(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
    """A run at every tick, unless one is at work."""
    return still_running(context, housekeeping_job.name) or window_request(context)


def clean_up(engine: Engine, instance: dg.DagsterInstance) -> Mapping[str, int]:
    """Apply the retention that is configured; how many runs and rows of which kind were deleted.

    Raises:
        dg.Failure: a part of it failed, which is named; all others were done.
    """
    now = datetime.now(UTC)
    runs_before = now - settings().runs_kept
    # A run that is still there finds its window's claim, however late somebody runs it again.
    rules = RetentionRules(max(settings().records_kept, settings().runs_kept), MINUTE_OPS)
    deleted: dict[str, int] = {}
    failed: dict[str, Exception] = {}
    for what, step in {
        **{what: partial(step, engine, rules) for what, step in STEPS.items()},
        "runs": partial(delete_ended_runs, instance, PRUNED_JOBS, runs_before),
        "reports": partial(delete_reports, instance, runs_before),
        "evaluation_logs": partial(delete_evaluation_logs, instance, evaluated(instance), runs_before),
    }.items():
        try:
            deleted[what] = step()
        except Exception as error:  # noqa: BLE001 - whatever it is, the others are not to wait for it
            failed[what] = error
    if failed:
        parts = "; ".join(f"{what.replace('_', ' ')}: {in_words(error)}" for what, error in failed.items())
        raise dg.Failure(f"Not deleted: {parts}. All else was; the next run tries again.") from next(
            iter(failed.values())
        )
    return deleted


def evaluated(instance: dg.DagsterInstance) -> list[str]:
    """The names of all schedules and sensors that were ever evaluated here."""
    return sorted({state.instigator_name for state in instance.all_instigator_state()})
