"""Schedules and sensors that were evaluated, as Dagster writes that down."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import dagster as dg
from dagster._core.remote_origin import (
    InProcessCodeLocationOrigin,
    RemoteInstigatorOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    InstigatorType,
    ScheduleInstigatorData,
    SensorInstigatorData,
    TickData,
    TickStatus,
)
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster_shared.error import SerializableErrorInfo

from schedules import SCHEDULES

NOW = datetime(2026, 6, 2, 12, 0, 30, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def origin(name: str) -> RemoteInstigatorOrigin:
    location = InProcessCodeLocationOrigin(LoadableTargetOrigin(), location_name="ticketflow")
    return RemoteInstigatorOrigin(RemoteRepositoryOrigin(location, "__repository__"), name)


def seen(
    instance: dg.DagsterInstance,
    name: str,
    status: InstigatorStatus = InstigatorStatus.DECLARED_IN_CODE,
    *,
    ago: timedelta = SECOND,
    error: tuple[str, str] | None = None,
) -> None:
    """A schedule or sensor that was evaluated `ago`, and failed with an `error` of a class."""
    is_schedule = name in {schedule.name for schedule in SCHEDULES}
    kind = InstigatorType.SCHEDULE if is_schedule else InstigatorType.SENSOR
    at = (NOW - ago).timestamp()
    data = ScheduleInstigatorData("* * * * *", 1.0) if is_schedule else SensorInstigatorData(last_tick_timestamp=at)
    state = InstigatorState(origin(name), kind, status, data)
    if instance.get_instigator_state(state.instigator_origin_id, state.selector_id) is None:
        instance.add_instigator_state(state)
    told = error and SerializableErrorInfo(error[1], [], error[0], None)
    instance.create_tick(
        TickData(
            state.instigator_origin_id, name, kind, TickStatus.FAILURE if error else TickStatus.SKIPPED, at,
            selector_id=state.selector_id, error=told or None,
        )
    )  # fmt: skip
