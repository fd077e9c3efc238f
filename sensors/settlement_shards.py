"""Further runs of a month's settlement: requested while its pass has chunks to spare, each joins it and helps."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import dagster as dg
from pydantic import Field

from assets.progress import settlement_progress
from assets.settlement_metadata import HANDS
from assets.tables import table
from resources import DatabaseResource
from schedules.settlement import settlement_options, settles
from schedules.windows import UNFINISHED
from ticketflow_orch.db.engine import PATIENCE
from ticketflow_orch.errors import InvalidInput, TicketflowError
from ticketflow_orch.jobs.firings import PARTITION, SHARD, SHARED_MONTH, SHARED_PASS
from ticketflow_orch.jobs.intervals import SETTLEMENT_SHARD
from ticketflow_orch.jobs.pods import SETTLING_POD
from ticketflow_orch.months import Month
from ticketflow_orch.settings import BOUNDS, settings
from ticketflow_orch.settlement import IncompleteSettlementError
from ticketflow_orch.settlement.shards import further_runs, join, open_work

# How long all further runs of a month may wait for their turn before somebody need know.
_LONGEST_WAIT = timedelta(minutes=10)


class ShardConfig(dg.Config):
    """Which pass of which month to join, and how; nothing here changes what is posted."""

    month: str = Field(description="The month, such as 2026-03.")
    settlement_pass: int = Field(description="The number of its pass.")
    workers: int = Field(settings().workers, description="Threads of this run, one connection each.")
    chunk_pause: float = Field(settings().chunk_pause, description="Seconds of rest between two chunks.")

    def require_sound(self) -> None:
        """Raise InvalidInput for a number that is out of bounds; the launchpad itself knows no bounds."""
        for name in ("workers", "chunk_pause"):
            (lowest, highest), value = BOUNDS[name], getattr(self, name)
            if not _is_within(name, value):
                raise InvalidInput(f"{name}: {value} is refused; write a number from {lowest} to {highest:,}.")


@dg.op(pool=SETTLEMENT_SHARD.pool, tags={"kind": "postgres"})
def settlement_shard(context: dg.OpExecutionContext, config: ShardConfig, database: DatabaseResource) -> None:
    """Take chunks of the pass until there is none to take; the run that leads the month ends it and shows it."""
    name = f"settlement_shard/{config.month}/{context.run.tags.get(SHARD, context.run_id)}"
    try:
        config.require_sound()
        month = Month.parse(config.month)
        with database.engine(name, connections=config.workers + 2, patience=PATIENCE) as engine:
            shared = join(
                engine,
                month,
                config.settlement_pass,
                run_id=context.run_id,
                workers=config.workers,
                parked_limit=settings().parked_limit,
                pause=config.chunk_pause,
                progress=settlement_progress(context.log.info),
            )
    except (TicketflowError, IncompleteSettlementError) as error:
        raise dg.Failure(str(error)) from error
    context.log.info(shared.summary)
    context.add_output_metadata(
        {
            "summary": shared.summary,
            "month": str(month),
            "pass": shared.number,
            "chunks": shared.chunks,
            "organizations": shared.organizations,
            "seconds": round(shared.seconds, 3),
            "who did what": table(HANDS, shared.hands),
        }
    )


@dg.job(description="Helps to settle a month that another run leads.", tags=SETTLING_POD)
def settlement_shard_job() -> None:
    """It has no partition: the run that leads the month materializes it, and no other."""
    settlement_shard()


@dataclass(frozen=True, slots=True)
class SharedMonth:
    """A month that the run `run_id` settles, to be shared by `shards` runs with `workers` each."""

    month: Month
    run_id: str
    shards: int
    workers: int
    chunk_pause: float


@dg.sensor(
    job_name=settlement_shard_job.name,
    minimum_interval_seconds=10,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Starts further runs of a settlement that asks for them, while there are more chunks than workers.",
)
def settlement_shards(
    context: dg.SensorEvaluationContext, database: DatabaseResource
) -> list[dg.RunRequest] | dg.SkipReason:
    """A run for each further number that finds work, once for each pass; where none asks, one question to Dagster."""
    months = list(shared_months(context.instance))
    if not months:
        return dg.SkipReason("No month is settled by several runs.")
    with database.engine("settlement_shards") as engine, engine.connect() as connection:
        requests = []
        for shared in months:
            work = open_work(connection, shared.month)
            if work is not None:
                requests += [
                    _request(shared, work.number, work.cutoff_at, number)
                    for number in further_runs(work.planned, shared.shards, shared.workers)
                ]
    named = ", ".join(str(shared.month) for shared in months)
    return requests or dg.SkipReason(f"Nothing to spare in {named}: no more chunks are left than there are workers.")


def _request(shared: SharedMonth, number: int, cutoff_at: datetime, shard: int) -> dg.RunRequest:
    return dg.RunRequest(
        # The cutoff too: a database that was restored counts its passes from an earlier number on.
        run_key=f"{shared.month} pass {number} of {cutoff_at.isoformat()}, run {shard}",
        run_config={
            "ops": {
                settlement_shard.name: {
                    "config": {
                        "month": str(shared.month),
                        "settlement_pass": number,
                        "workers": shared.workers,
                        "chunk_pause": shared.chunk_pause,
                    }
                }
            }
        },
        tags={SHARED_MONTH: str(shared.month), SHARED_PASS: str(number), SHARD: str(shard)},
    )


def shared_months(instance: dg.DagsterInstance) -> Iterator[SharedMonth]:
    """The months that runs are settling by now which are to share them with others."""
    for run in instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED])):
        month = run.tags.get(PARTITION)
        if month is None or not settles(run):
            continue
        options = settlement_options(run)
        shards, workers = options.get("shards", 1), options.get("workers", settings().workers)
        # What is out of bounds is refused by the run itself.
        if shards > 1 and _is_within("shards", shards) and _is_within("workers", workers):
            pause = options.get("chunk_pause", settings().chunk_pause)
            yield SharedMonth(Month.parse(month), run.run_id, shards, workers, pause)


def _is_within(name: str, value: float) -> bool:
    lowest, highest = BOUNDS[name]
    return lowest <= value <= highest


def waiting_shards(instance: dg.DagsterInstance, now: datetime) -> Iterator[str]:
    """A line for each month that asked for further runs, of which none has had its turn for long."""
    for shared in shared_months(instance):
        asked_for = dg.RunsFilter(
            job_name=settlement_shard_job.name, tags={SHARED_MONTH: str(shared.month)}, statuses=UNFINISHED
        )
        records = instance.get_run_records(asked_for)
        waiting = [one for one in records if one.dagster_run.status == dg.DagsterRunStatus.QUEUED]
        since = min((one.create_timestamp for one in waiting), default=now)
        if len(waiting) == len(records) and now - since > _LONGEST_WAIT:
            yield (
                f"{shared.month}: {len(waiting)} further runs of its settlement have been queued since "
                f"{since.isoformat(timespec='seconds')} and none is at work; raise the limit of the pool "
                f"{SETTLEMENT_SHARD.pool} in the UI (Deployment, Concurrency), or let other runs end. The month is "
                "settled without them, more slowly."
            )
