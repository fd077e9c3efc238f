"""Housekeeping: every day, what is over and done with goes, from TicketFlow's tables and from Dagster's own."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime

import dagster as dg
from sqlalchemy import Engine

from resources import ClockResource, DatabaseResource
from schedules.audit import audit_job
from schedules.close_events import close_events_job
from schedules.expire_reservations import expire_reservations, expire_reservations_job
from schedules.send_reminders import send_reminders, send_reminders_job
from schedules.windows import DAILY_JOB, once_per_window, still_running, window_request
from ticketflow_orch.database import PATIENCE
from ticketflow_orch.retention import RetentionRules, prune
from ticketflow_orch.settings import settings

# Only those whose windows come by the minute: a day's or a month's claim is kept for ever.
MINUTE_OPS = (expire_reservations.name, send_reminders.name)
ENDED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
_RUNS_AT_ONCE = 100


@dg.op(pool="housekeeping", tags={"kind": "postgres"})
def housekeeping(context: dg.OpExecutionContext, database: DatabaseResource, clock: ClockResource) -> None:
    """Apply the retention: ended runs of scheduled ops, delivered events, firings, claims of minute jobs."""
    with database.engine(f"housekeeping/{context.run_id}", patience=PATIENCE) as engine:
        once_per_window(context, engine, clock.now(), lambda: clean_up(engine, context.instance))


@dg.job(tags=DAILY_JOB, description="Deletes what is older than retention allows.")
def housekeeping_job() -> None:
    """One run per window."""
    housekeeping()


@dg.schedule(
    job=housekeeping_job,
    cron_schedule="0 6 * * *",
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


# Runs of all other jobs stay: those that materialize a month are how the UI knows that it is settled.
# The relay's is named here, since sensors build on schedules.
PRUNED_JOBS = (
    close_events_job.name,
    expire_reservations_job.name,
    send_reminders_job.name,
    housekeeping_job.name,
    audit_job.name,
    "relay_outbox_job",
)


def clean_up(engine: Engine, instance: dg.DagsterInstance) -> Mapping[str, int]:
    """Apply the retention that is configured; how many runs and rows of which kind were deleted."""
    # A run that is still there finds its window's claim, however late somebody runs it again.
    kept = max(settings().records_kept, settings().runs_kept)
    pruned = prune(engine, RetentionRules(kept, MINUTE_OPS))
    runs = delete_ended_runs(instance, PRUNED_JOBS, datetime.now(UTC) - settings().runs_kept)
    return {**asdict(pruned), "runs": runs}


def delete_ended_runs(instance: dg.DagsterInstance, jobs: Sequence[str], before: datetime) -> int:
    """Delete the runs of `jobs` that have ended and were created before, with their events and logs; how many."""
    deleted = 0
    for job in jobs:
        ended = dg.RunsFilter(job_name=job, statuses=ENDED, created_before=before)
        while runs := instance.get_runs(ended, limit=_RUNS_AT_ONCE, ascending=True):
            for run in runs:
                instance.compute_log_manager.delete_logs(prefix=[run.run_id])
                instance.delete_run(run.run_id)
            deleted += len(runs)
    return deleted
