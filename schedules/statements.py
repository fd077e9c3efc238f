"""The statements' schedule: every day, for whatever month is closed and without statements."""

import dagster as dg

from assets import settlement_statements, statements_add_up
from resources import DatabaseResource
from schedules.windows import months_request, still_running, stretches
from ticketflow_orch.jobs.intervals import STATEMENTS
from ticketflow_orch.settings import settings
from ticketflow_orch.statements.invariants import months_to_issue

statements_job = dg.define_asset_job(
    STATEMENTS.dagster_name,
    selection=dg.AssetSelection.assets(settlement_statements) | dg.AssetSelection.checks(statements_add_up),
    description="Writes the statements of closed months, queues their mails and judges all that were written.",
)


@dg.schedule(
    job=statements_job,
    cron_schedule=STATEMENTS.cron,
    execution_timezone=settings().business_timezone,
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Requests a run for closed months whose statements are not all written: one for those in a row.",
    metadata={
        "window": "each month (a partition) that is closed and has no statements",
        "repeat": "the same bytes; nobody is mailed a statement twice",
    },
)
def statements_schedule(
    context: dg.ScheduleEvaluationContext, database: DatabaseResource
) -> list[dg.RunRequest] | dg.SkipReason:
    """A run for each stretch of months that are due, unless one is at work: all in one would issue those between again.

    Months between are there when a statement of an earlier one was left out.
    """
    with database.engine("statements_schedule") as engine, engine.connect() as connection:
        due = months_to_issue(connection)
    if not due:
        return dg.SkipReason("Every closed month has its statements.")
    return still_running(context, statements_job.name) or [
        months_request(context, stretch) for stretch in stretches(due)
    ]
