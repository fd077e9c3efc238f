"""What the assets with a partition a month share: a firing on record, the months in order, each of them shown."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import dagster as dg
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from assets.partitions import months
from ticketflow_orch.db.errors import database_fault
from ticketflow_orch.db.retrying import retried
from ticketflow_orch.errors import InvalidInput, TicketflowError
from ticketflow_orch.jobs.firings import PARTITION, PARTITION_RANGE, scheduled_firing
from ticketflow_orch.jobs.run_once import write_down
from ticketflow_orch.months import Month

Errors = tuple[type[Exception], ...]
Answer = TypeVar("Answer")


def each_month(
    context: dg.AssetExecutionContext,
    engine: Engine,
    work: Callable[[Month], Mapping[str, Any]],
    *,
    refusals: Errors = (TicketflowError,),
    own_faults: Errors = (),
) -> Iterator[dg.MaterializeResult | dg.AssetMaterialization]:  # type: ignore[type-arg]
    """Record the run's firing, do `work` for each of its months in order, and show the metadata that it returns.

    Whatever ends the run, the months that are done by then are materialized. `work` is harmless to repeat, and is done
    again while the database is away, for as long as the engine is patient.

    Raises:
        Failure: `work` raised one of `refusals`, or the database is in no state for it, which ends the run; or of
            `own_faults`, which are faults of their month alone: the months after it are done all the same. The
            description has a sentence for each.
    """
    done: dict[str, Mapping[str, Any]] = {}
    faults: list[Exception] = []
    try:
        _record_firing(context, engine)
        for month in months_of(context):
            try:
                done[str(month)] = retried(engine, partial(work, month))
            except own_faults as error:
                faults.append(error)
    except refusals as error:
        faults.append(error)
    except DBAPIError as error:
        yield from _materializations(context, done)
        fault = database_fault(error)
        if fault is None:
            raise
        raise dg.Failure(fault.sentence) from error
    except BaseException:
        yield from _materializations(context, done)
        raise
    if faults:
        yield from _materializations(context, done)
        raise dg.Failure(" ".join(map(str, faults))) from faults[-1]
    for key, metadata in done.items():
        context.add_asset_metadata(metadata, partition_key=key)
    yield dg.MaterializeResult()


def months_of(context: dg.AssetExecutionContext) -> list[Month]:
    """The months that a run is for, in order; there is at least one.

    Raises:
        InvalidInput: it names none, or one before the first partition.
    """
    tags = context.run.tags
    first, last = (tags.get(name) or tags.get(PARTITION) for name in PARTITION_RANGE)
    if not first or not last:
        raise InvalidInput("This run names no month; choose one where it is launched, such as 2026-03.")
    if Month.parse(last) < Month.parse(first):
        raise InvalidInput(f"There is no month from {first} to {last}; turn the two around.")
    earliest = months.get_first_partition_key()
    if earliest is None or Month.parse(first) < Month.parse(earliest):
        raise InvalidInput(f"{first} is before the first month, {earliest}; choose a later one.")
    return sorted(map(Month.parse, context.partition_keys))


def month_of(context: dg.AssetExecutionContext) -> Month:
    """The one month that a run is for.

    Raises:
        InvalidInput: it names none, or several, or one before the first partition.
    """
    found = months_of(context)
    if len(found) > 1:
        raise InvalidInput(f"A run takes one month, and this one names {len(found)}; launch them as a backfill.")
    return found[0]


def launched_by(tags: Mapping[str, str]) -> str:
    """Who started a run, as its tags say: a person by declared name, a schedule, a backfill, or a run by hand."""
    for tag, label in (("user", "user"), ("dagster/schedule_name", "schedule"), ("dagster/backfill", "backfill")):
        if tag in tags:
            return f"{label} {tags[tag]}"
    return "run by hand"


def _record_firing(context: dg.AssetExecutionContext, engine: Engine) -> None:
    firing = scheduled_firing(context.asset_key.to_user_string(), context.run.run_id, context.run.tags)
    if firing is not None:
        write_down(engine, firing)


def asked(engine: Engine, question: Callable[[Connection], Answer]) -> Answer:
    """What the database answers to `question`, which is asked again while it is away."""

    def ask() -> Answer:
        with engine.connect() as connection:
            return question(connection)

    return retried(engine, ask)


def _materializations(
    context: dg.AssetExecutionContext, done: Mapping[str, Mapping[str, Any]]
) -> Iterator[dg.AssetMaterialization]:
    for key, metadata in done.items():
        yield dg.AssetMaterialization(context.asset_key, partition=key, metadata=metadata)
