"""The settlement's schedule: on day 2, and on each day after for whatever is still unsettled or came late.

Dagster never catches up a tick that it missed, so the schedule asks the database what is due instead of trusting
that yesterday's tick ran.
"""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from assets import SETTLEMENT_CHECKS, monthly_settlement
from resources import DatabaseResource
from schedules.windows import UNFINISHED
from ticketflow_orch.db.installation import read_installation
from ticketflow_orch.jobs.firings import PARTITION, window_tags
from ticketflow_orch.jobs.intervals import MONTHLY_SETTLEMENT
from ticketflow_orch.jobs.pods import SETTLING_POD
from ticketflow_orch.months import Month
from ticketflow_orch.settings import settings
from ticketflow_orch.settlement.due import due_months, late_months
from ticketflow_orch.settlement.shards import runs_by_size

monthly_settlement_job = dg.define_asset_job(
    MONTHLY_SETTLEMENT.dagster_name,
    selection=dg.AssetSelection.assets(monthly_settlement) | dg.AssetSelection.checks(*SETTLEMENT_CHECKS),
    tags=SETTLING_POD,
    description="Settles one month and judges all months that are not closed.",
)


@dg.schedule(
    job=monthly_settlement_job,
    cron_schedule=MONTHLY_SETTLEMENT.cron,
    execution_timezone=settings().business_timezone,
    default_status=dg.DefaultScheduleStatus.RUNNING,
    description="Requests every month that is over and unsettled, or whose pass was left running, and every settled "
    "one that something came late for; the first that is not closed takes in what came late for those before.",
    metadata={
        "window": "each month (a partition) that is over everywhere and not settled, or not since something came late",
        "repeat": "nothing, or an adjustment for what came late: the ledger's key takes each entry once",
    },
)
def settlement_schedule(
    context: dg.ScheduleEvaluationContext, database: DatabaseResource
) -> list[dg.RunRequest] | dg.SkipReason:
    """One run per month that is due at the tick's time."""
    tick = context.scheduled_execution_time
    with database.engine("settlement_schedule") as engine, engine.connect() as connection:
        first_month = read_installation(connection).first_month
        due = sorted({*late_months(connection), *due_months(connection, tick, first_month)})
        shards = runs_by_size(connection, settings().shard_above, settings().max_shards) if due else 1
    if not due:
        return dg.SkipReason("Every month that is over is settled, and nothing came late.")
    waiting = [month for month in due if not is_in_a_run(context.instance, month)]
    if not waiting:
        return dg.SkipReason(f"Due and in a run already: {', '.join(map(str, due))}.")
    return [
        dg.RunRequest(
            partition_key=str(month),
            run_key=str(month),
            run_config=shared_by(shards),
            tags=window_tags(tick),
        )
        for month in waiting
    ]


def shared_by(shards: int) -> dict[str, Any]:
    """The configuration of a settlement that so many runs share; its own default where that is one."""
    return {"ops": {monthly_settlement.op.name: {"config": {"shards": shards}}}} if shards > 1 else {}


def settlement_options(run: dg.DagsterRun) -> Mapping[str, Any]:
    """What a run of the settlement was configured with; what it leaves to defaults is not there."""
    configured: Any = run.run_config
    return configured.get("ops", {}).get(monthly_settlement.op.name, {}).get("config") or {}


def is_in_a_run(instance: dg.DagsterInstance, month: Month) -> bool:
    """Whether a run that settles `month` is queued or running, no matter who launched it."""
    runs = instance.get_runs(dg.RunsFilter(tags={PARTITION: str(month)}, statuses=UNFINISHED))
    return any(settles(run) for run in runs)


def settles(run: dg.DagsterRun) -> bool:
    """Whether a run settles its partition's month, be it of the job or launched from the asset."""
    return run.job_name == monthly_settlement_job.name or monthly_settlement.key in (run.asset_selection or ())
