"""The payouts' schedule: every day, for whatever month is closed and not paid yet.

Asks the database what is due, since Dagster never catches up a tick that it missed.
"""

import dagster as dg

from assets import PAYOUT_CHECKS, payouts
from resources import DatabaseResource
from schedules.windows import months_request, still_running
from ticketflow_orch.jobs.intervals import PAYOUTS
from ticketflow_orch.payouts.request import payouts_due_months
from ticketflow_orch.settings import settings

payouts_job = dg.define_asset_job(
    PAYOUTS.dagster_name,
    selection=dg.AssetSelection.assets(payouts) | dg.AssetSelection.checks(*PAYOUT_CHECKS),
    description="Requests the payouts of closed months and judges those of all months.",
)


@dg.schedule(
    job=payouts_job,
    cron_schedule=PAYOUTS.cron,
    execution_timezone=settings().business_timezone,
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Requests one run for all closed months that are not paid yet, in their order.",
    metadata={
        "window": "each month (a partition) that is closed, pays anybody and lacks payouts",
        "repeat": "nothing: a payout's key takes it once, and its event is written with it",
    },
)
def payouts_schedule(
    context: dg.ScheduleEvaluationContext, database: DatabaseResource
) -> dg.RunRequest | dg.SkipReason:
    """A run for the months that are due, unless one is at work."""
    with database.engine("payouts_schedule") as engine, engine.connect() as connection:
        due = payouts_due_months(connection)
    if not due:
        return dg.SkipReason("Every closed month is paid, or pays nobody.")
    return still_running(context, payouts_job.name) or months_request(context, due)
