"""Reminders before events: every quarter of an hour in which anybody is to be reminded."""

from dataclasses import asdict
from datetime import datetime

import dagster as dg
from sqlalchemy import Engine

from resources import ClockResource, DatabaseResource
from schedules.windows import MINUTE_JOB, claimed_window, log_left_out, still_running, window_request
from ticketflow_orch.db.engine import SHORT_PATIENCE
from ticketflow_orch.db.installation import decided
from ticketflow_orch.db.retrying import retried
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.event_handlers import KINDS
from ticketflow_orch.jobs.intervals import SEND_REMINDERS
from ticketflow_orch.periods.two_clocks import judged_at
from ticketflow_orch.settings import settings
from ticketflow_orch.ticketing.reminders import ReminderRules
from ticketflow_orch.ticketing.reminding import is_due, remind


@dg.op(pool=SEND_REMINDERS.pool, tags={"kind": "postgres"})
def send_reminders(context: dg.OpExecutionContext, database: DatabaseResource, clock: ClockResource) -> None:
    """Queue every reminder that is due, mail what changed since, and take up mails that nothing keeps back any more."""
    with database.engine(f"send_reminders/{context.run_id}", patience=SHORT_PATIENCE) as engine:
        try:
            rules = retried(engine, lambda: _rules(engine, clock.now()))
        except TicketflowError as error:
            raise dg.Failure(str(error)) from error
        with claimed_window(context, engine) as window:
            if window.is_ours:
                cancellations = settings().mail_cancellations
                reminded = retried(engine, lambda: remind(engine, rules, KINDS, cancellations=cancellations))
                log_left_out(context, reminded.bad)
                window.complete(asdict(reminded))


def _rules(engine: Engine, now: datetime) -> ReminderRules:
    with engine.connect() as connection:
        judged = judged_at(connection, now, "remind nobody")
        return ReminderRules.configured(decided(connection, settings()), judged)


@dg.job(tags=MINUTE_JOB, description="Queues the reminders that are due.")
def send_reminders_job() -> None:
    """One run per window."""
    send_reminders()


@dg.schedule(
    job=send_reminders_job,
    cron_schedule=SEND_REMINDERS.cron,
    execution_timezone=settings().business_timezone,
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Every 15 minutes in which a reminder is due.",
    metadata={
        "window": "CONFIRMED reservations of events that start within the kind's lead (24 hours); events that changed; "
        "mails that were kept back",
        "repeat": "nothing: one reminder per reservation, kind and local date of the event, one mail per change",
    },
)
def send_reminders_schedule(
    context: dg.ScheduleEvaluationContext, database: DatabaseResource, clock: ClockResource
) -> dg.RunRequest | dg.SkipReason:
    """A run when anything is due, unless one is at work."""
    with database.engine("send_reminders_schedule") as engine, engine.connect() as connection:
        try:
            now = judged_at(connection, clock.now(), "remind nobody")
        except TicketflowError as error:
            return dg.SkipReason(str(error))
        rules = ReminderRules.configured(decided(connection, settings()), now)
        if not is_due(connection, rules, KINDS):
            return dg.SkipReason("No reminder is due.")
    return still_running(context, send_reminders_job.name) or window_request(context)
