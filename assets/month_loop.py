"""What the assets with a partition a month share: a firing on record, the months in order, each of them shown."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import dagster as dg
from sqlalchemy import Engine

from ticketflow_orch.database import transaction
from ticketflow_orch.errors import InputError
from ticketflow_orch.firings import record, scheduled_firing
from ticketflow_orch.months import Month

Errors = tuple[type[Exception], ...]


def each_month(
    context: dg.AssetExecutionContext,
    engine: Engine,
    work: Callable[[Month], Mapping[str, Any]],
    *,
    refusals: Errors = (InputError,),
    own_faults: Errors = (),
) -> Iterator[dg.MaterializeResult | dg.AssetMaterialization]:  # type: ignore[type-arg]
    """Record the run's firing, do `work` for each of its months in order, and show the metadata that it returns.

    Whatever ends the run, the months that are done by then are materialized.

    Raises:
        Failure: `work` raised one of `refusals`, which ends the run, or of `own_faults`, which are faults of their
            month alone: the months after it are done all the same. The description has a sentence for each.
    """
    done: dict[str, Mapping[str, Any]] = {}
    faults: list[Exception] = []
    try:
        _record_firing(context, engine)
        for month in sorted(map(Month.parse, context.partition_keys)):
            try:
                done[str(month)] = work(month)
            except own_faults as error:
                faults.append(error)
    except refusals as error:
        faults.append(error)
    except BaseException:
        yield from _materializations(context, done)
        raise
    if faults:
        yield from _materializations(context, done)
        raise dg.Failure(" ".join(map(str, faults))) from faults[-1]
    for key, metadata in done.items():
        context.add_asset_metadata(metadata, partition_key=key)
    yield dg.MaterializeResult()


def launched_by(tags: Mapping[str, str]) -> str:
    """Who started a run, as its tags tell: a person by declared name, a schedule, a backfill, or a run by hand."""
    for tag, label in (("user", "user"), ("dagster/schedule_name", "schedule"), ("dagster/backfill", "backfill")):
        if tag in tags:
            return f"{label} {tags[tag]}"
    return "run by hand"


def _record_firing(context: dg.AssetExecutionContext, engine: Engine) -> None:
    firing = scheduled_firing(context.asset_key.to_user_string(), context.run.run_id, context.run.tags)
    if firing is not None:
        with transaction(engine) as connection:
            record(connection, firing)


def _materializations(
    context: dg.AssetExecutionContext, done: Mapping[str, Mapping[str, Any]]
) -> Iterator[dg.AssetMaterialization]:
    for key, metadata in done.items():
        yield dg.AssetMaterialization(context.asset_key, partition=key, metadata=metadata)
