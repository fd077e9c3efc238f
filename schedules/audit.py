"""The audit's schedule: every day, after the other daily jobs, all that must hold about money is judged."""

import dagster as dg

from assets import CHECKS
from schedules.windows import still_running, window_request
from ticketflow_orch.jobs.intervals import AUDIT
from ticketflow_orch.settings import settings

audit_job = dg.define_asset_job(
    AUDIT.dagster_name,
    selection=dg.AssetSelection.checks(*CHECKS),
    description="Judges all months, closed ones included, though nothing else runs. Changes nothing.",
)


@dg.schedule(
    job=audit_job,
    cron_schedule=AUDIT.cron,
    execution_timezone=settings().business_timezone,
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Every day at 07:30; it changes nothing, so it leaves no firing.",
    metadata={
        "window": "all months that were ever settled, and what follows from them",
        "repeat": "nothing: it only reads",
    },
)
def audit_schedule(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
    """A run at every tick, unless one is at work."""
    return still_running(context, audit_job.name) or window_request(context)
