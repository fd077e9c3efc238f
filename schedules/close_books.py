"""Closing the books by the clock: an hour after the settlement, all months that may be closed, in order, in one run."""

import dagster as dg

from assets.closed_books import BOOKS_CHECKS, closed_books
from resources import DatabaseResource
from schedules.windows import UNFINISHED, months_request, still_running
from ticketflow_orch.closing.turn import months_to_close
from ticketflow_orch.db.installation import read_installation
from ticketflow_orch.jobs.intervals import CLOSE_BOOKS
from ticketflow_orch.settings import settings

close_books_job = dg.define_asset_job(
    CLOSE_BOOKS.dagster_name,
    selection=dg.AssetSelection.assets(closed_books) | dg.AssetSelection.checks(*BOOKS_CHECKS),
    description="Closes months in order and judges all that are closed.",
)


@dg.schedule(
    job=close_books_job,
    cron_schedule=CLOSE_BOOKS.cron,
    execution_timezone=settings().business_timezone,
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Requests all months that are settled and next in turn, in one run, unless auto_close is off.",
    metadata={
        "window": "the settled months that follow the last closed one",
        "repeat": "nothing: a month is closed once, a balance's key takes one row",
    },
)
def close_books_schedule(
    context: dg.ScheduleEvaluationContext, database: DatabaseResource
) -> dg.RunRequest | dg.SkipReason:
    """One run for the months that may be closed at the tick's time."""
    busy = still_running(context, close_books_job.name) or by_hand(context.instance)
    if busy is not None:
        return busy
    tick = context.scheduled_execution_time
    with database.engine("close_books_schedule") as engine, engine.connect() as connection:
        installed = read_installation(connection)
        if not installed.auto_close:
            return dg.SkipReason("auto_close is off: months are closed by hand.")
        months = tuple(months_to_close(connection, tick, installed.first_month))
    return months_request(context, months) if months else dg.SkipReason("No month that is settled may be closed.")


def by_hand(instance: dg.DagsterInstance) -> dg.SkipReason | None:
    """A reason to skip that names a run by which somebody is closing months, if there is one."""
    for run in instance.get_runs(dg.RunsFilter(statuses=UNFINISHED)):
        if closed_books.key in (run.asset_selection or ()):
            return dg.SkipReason(f"Run {run.run_id} is closing months already.")
    return None
