"""Closing what is over: every day, whether or not anything is, so that a missing firing means something."""

from dataclasses import asdict

import dagster as dg

from resources import ClockResource, DatabaseResource
from schedules.windows import DAILY_JOB, claimed_window, log_left_out, still_running, window_request
from ticketflow_orch.db.engine import PATIENCE
from ticketflow_orch.db.retrying import retried
from ticketflow_orch.jobs.intervals import CLOSE_EVENTS
from ticketflow_orch.settings import settings
from ticketflow_orch.ticketing import events
from ticketflow_orch.ticketing.lifecycle import LifecycleRules


@dg.op(pool=CLOSE_EVENTS.pool, tags={"kind": "postgres"})
def close_events(context: dg.OpExecutionContext, database: DatabaseResource, clock: ClockResource) -> None:
    """Close every OPEN event whose end is past, and expire the reservations that were still held for it."""
    rules = LifecycleRules.configured(settings(), clock.now(), context.run_id)
    with (
        database.engine(f"close_events/{context.run_id}", patience=PATIENCE) as engine,
        claimed_window(context, engine) as window,
    ):
        if window.is_ours:
            closed = retried(engine, lambda: events.close_events(engine, rules))
            log_left_out(context, closed.bad)
            window.complete(asdict(closed))


@dg.job(tags=DAILY_JOB, description="Closes events that are over.")
def close_events_job() -> None:
    """One run per window."""
    close_events()


@dg.schedule(
    job=close_events_job,
    cron_schedule=CLOSE_EVENTS.cron,
    execution_timezone=settings().business_timezone,
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Every day at 04:30.",
    metadata={
        "window": "OPEN events that ended before now",
        "repeat": "nothing: OPEN → CLOSED and ACTIVE → EXPIRED happen once",
    },
)
def close_events_schedule(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
    """A run at every tick, unless one is at work."""
    return still_running(context, close_events_job.name) or window_request(context)
