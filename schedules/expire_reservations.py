"""Expiring reservations: every minute in which any is due."""

from dataclasses import asdict

import dagster as dg

from resources import ClockResource, DatabaseResource
from schedules.windows import MINUTE_JOB, claimed_window, log_left_out, still_running, window_request
from ticketflow_orch.db.engine import SHORT_PATIENCE
from ticketflow_orch.db.retrying import retried
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.jobs.intervals import EXPIRE_RESERVATIONS
from ticketflow_orch.periods.two_clocks import judged_at
from ticketflow_orch.settings import settings
from ticketflow_orch.ticketing import reservations
from ticketflow_orch.ticketing.lifecycle import LifecycleRules


@dg.op(pool=EXPIRE_RESERVATIONS.pool, tags={"kind": "postgres"})
def expire_reservations(context: dg.OpExecutionContext, database: DatabaseResource, clock: ClockResource) -> None:
    """Expire every ACTIVE reservation whose time is up, and report payments that outlasted their grace."""
    rules = LifecycleRules.configured(settings(), clock.now(), context.run_id)
    with (
        database.engine(f"expire_reservations/{context.run_id}", patience=SHORT_PATIENCE) as engine,
        claimed_window(context, engine) as window,
    ):
        if window.is_ours:
            expired = retried(engine, lambda: reservations.expire_reservations(engine, rules))
            log_left_out(context, expired.bad)
            window.complete(asdict(expired))


@dg.job(tags=MINUTE_JOB, description="Expires reservations whose time is up.")
def expire_reservations_job() -> None:
    """One run per window."""
    expire_reservations()


@dg.schedule(
    job=expire_reservations_job,
    cron_schedule=EXPIRE_RESERVATIONS.cron,
    execution_timezone=settings().business_timezone,
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Every minute in which a reservation is due.",
    metadata={
        "window": "ACTIVE reservations that expire by now",
        "repeat": "nothing: ACTIVE → EXPIRED happens once, a stuck payment is reported once",
    },
)
def expire_reservations_schedule(
    context: dg.ScheduleEvaluationContext, database: DatabaseResource, clock: ClockResource
) -> dg.RunRequest | dg.SkipReason:
    """A run when anything is due, unless one is at work."""
    with database.engine("expire_reservations_schedule") as engine, engine.connect() as connection:
        try:
            now = judged_at(connection, clock.now(), "expire nothing")
        except TicketflowError as error:
            # Health says so too, and a run a minute that fails would say no more.
            return dg.SkipReason(str(error))
        rules = LifecycleRules.configured(settings(), now)
        if not reservations.reservations_are_due(connection, rules):
            return dg.SkipReason("No reservation is due.")
    return still_running(context, expire_reservations_job.name) or window_request(context)
