"""The asset that settles a month: reads the run's configuration, calls the settlement, shows what came of it."""

from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg
from pydantic import Field
from sqlalchemy import Engine

from assets.month_loop import asked, each_month, launched_by, month_of
from assets.partitions import months
from assets.progress import settlement_progress
from assets.settlement_metadata import LEDGER_COLUMNS, dry_run_metadata, settlement_metadata
from resources import ClockResource, DatabaseResource, OutboxResource
from ticketflow_orch.db.engine import PATIENCE
from ticketflow_orch.db.installation import read_installation
from ticketflow_orch.errors import InvalidInput, TicketflowError
from ticketflow_orch.formatting.counts import counted
from ticketflow_orch.formatting.output_files import file_within
from ticketflow_orch.months import Month
from ticketflow_orch.settings import BOUNDS, settings
from ticketflow_orch.settlement import IncompleteSettlementError, SettlementOptions, settle_month
from ticketflow_orch.settlement.preview import dry_run

# Below the home: anyone who may launch a run names a file, and must not be able to replace any other.
DRY_RUNS = "dry-runs"


class SettlementConfig(dg.Config):
    """How to go about it; but for a dry run, which posts nothing, nothing here changes what is posted."""

    chunk_size: int = Field(settings().chunk_size, description="Organizations per transaction.")
    chunk_pause: float = Field(settings().chunk_pause, description="Seconds of rest between two chunks.")
    workers: int = Field(settings().workers, description="Threads of this run, one connection each.")
    writer_wait: float = Field(
        settings().writer_wait, description="Seconds to wait for transactions that are writing movements."
    )
    shards: int = Field(
        1,
        description="Runs that share the month: while this one has chunks to spare, further runs are started that take "
        "some of them, each with as many workers.",
    )
    full: bool = Field(
        False, description="Recompute every organization, closed months included, not only those that can have changed."
    )
    dry_run: bool = Field(False, description="Show what would be posted now, and post nothing.")
    dry_run_file: str = Field(
        "",
        description="Name of a file in <home>/dry-runs where a dry run writes all it would post as CSV; empty: none.",
    )

    def require_sound(self) -> None:
        """Raise TicketflowError for a number that is out of bounds; the launchpad itself knows no bounds."""
        for name, (lowest, highest) in BOUNDS.items():
            value = getattr(self, name)
            if not lowest <= value <= highest:
                raise InvalidInput(f"{name}: {value} is refused; write a number from {lowest} to {highest:,}.")
        if self.dry_run_file and not self.dry_run:
            raise InvalidInput(
                f"dry_run_file: {self.dry_run_file!r} is for a dry run; set dry_run: true, or leave it out."
            )


@dg.asset(
    partitions_def=months,
    # A dry run observes the month and leaves it as unsettled, or as settled, as it was.
    output_required=False,
    pool="settlement",
    group_name="settlement",
    owners=["team:finance"],
    kinds={"postgres"},
    tags={"domain": "settlement"},
    metadata={"dagster/column_schema": LEDGER_COLUMNS, "dagster/table_name": "ledger_entry"},
)
def monthly_settlement(
    context: dg.AssetExecutionContext,
    config: SettlementConfig,
    database: DatabaseResource,
    clock: ClockResource,
    outbox: OutboxResource,
) -> Iterator[dg.MaterializeResult | dg.AssetMaterialization | dg.AssetObservation]:  # type: ignore[type-arg]
    """What every organization's money movements of the month come to, posted to the ledger once, to the cent.

    Materializing a month again posts only what came late, as adjustments; nothing late, nothing posted. A month that
    is not over in every organization's time zone is refused. With `dry_run: true` in the run's configuration nothing
    is posted, and what would be is an observation of the month instead of a materialization.
    """
    try:
        config.require_sound()
        month = month_of(context)
    except TicketflowError as error:
        raise dg.Failure(str(error)) from error
    name = f"monthly_settlement/{month}"
    with database.engine(name, connections=config.workers + 2, patience=PATIENCE) as engine:
        if config.dry_run:
            yield _rehearse(context, config, engine, month, clock)
            return

        def settle(month: Month) -> Mapping[str, Any]:
            result = settle_month(
                engine,
                month,
                now=clock.now(),
                first_month=asked(engine, read_installation).first_month,
                run_id=context.run.run_id,
                settled_by=launched_by(context.run.tags),
                options=SettlementOptions(
                    chunk_size=config.chunk_size,
                    chunk_pause=config.chunk_pause,
                    workers=config.workers,
                    writer_wait=config.writer_wait,
                    parked_limit=settings().parked_limit,
                    full=config.full,
                ),
                publish=outbox.append,
                progress=settlement_progress(context.log.info),
            )
            if result.parked:
                context.log.error(
                    f"{month}: {counted(len(result.parked), 'organization')} parked: "
                    + "; ".join(f"{parked.external_ref}: {parked.why}" for parked in result.parked)
                )
            return asked(engine, lambda connection: settlement_metadata(connection, result))

        yield from each_month(context, engine, settle, refusals=(TicketflowError, IncompleteSettlementError))


def _rehearse(
    context: dg.AssetExecutionContext, config: SettlementConfig, engine: Engine, month: Month, clock: ClockResource
) -> dg.AssetObservation:
    try:
        file = file_within(settings().home / DRY_RUNS, config.dry_run_file) if config.dry_run_file else None
        with engine.connect() as connection:
            first_month = read_installation(connection).first_month
        rehearsed = dry_run(
            engine,
            month,
            now=clock.now(),
            first_month=first_month,
            chunk_size=config.chunk_size,
            file=file,
        )
    except TicketflowError as error:
        raise dg.Failure(str(error)) from error
    context.log.info(f"Dry run: nothing was posted. {rehearsed.entries} entries would be posted in {month}.")
    return dg.AssetObservation(context.asset_key, partition=str(month), metadata=dry_run_metadata(rehearsed, file))
