"""Whether schedules and sensors are evaluated: what is switched off, left alone, or fails."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import dagster as dg

from schedules import SCHEDULES
from sensors import SENSORS
from sensors.missed_windows import ticks
from ticketflow_orch.dagster_host.dagster_internals import (
    InstigatorState,
    InstigatorTick,
    ScheduleInstigatorData,
    SensorInstigatorData,
    TickStatus,
)

_SWITCH_ON = "switch it on in the UI, under Automation"
_CODE_SERVER = (
    "its code server is away or cannot load the code: `ticketflow doctor` says whether the code loads, then restart "
    "the code server"
)
# How late an evaluation may be: a code server that is started anew, or a daemon that has just come back, catches up.
_PATIENCE = timedelta(minutes=3)
# How long there may be no evaluation at all, beyond the interval of what is evaluated most often, before the code
# server is at fault: a sensor that hangs holds up the other sensors, but not the schedules that come by the minute.
_SILENCE = timedelta(seconds=65)
_UNREACHABLE = {"DagsterUserCodeUnreachableError", "DagsterCodeLocationLoadError"}
_LONGEST_ERROR = 300
_MINUTE = timedelta(minutes=1)
# In seconds.
_BY_DEFAULT = 30


@dataclass(frozen=True, slots=True)
class _Watched:
    """A schedule or sensor that ought to be evaluated, what is known of it, and its last evaluation."""

    definition: dg.ScheduleDefinition | dg.SensorDefinition
    states: Sequence[InstigatorState]
    last: InstigatorTick | None

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def is_off(self) -> bool:
        """Whether somebody has switched it off, in every code location that has it."""
        return bool(self.states) and not any(state.is_running for state in self.states)

    @property
    def since(self) -> datetime | None:
        """When it was last evaluated, or switched on after that; None: nobody has yet."""
        known = [self.last.timestamp] if self.last else []
        known += [started for state in self.states if (started := _started(state)) is not None]
        return datetime.fromtimestamp(max(known), UTC) if known else None

    def is_late(self, now: datetime) -> bool:
        """Whether an evaluation ought to have come since."""
        if self.since is None:
            return False
        if isinstance(self.definition, dg.ScheduleDefinition):
            return next(ticks(self.definition, self.since, now - _PATIENCE), None) is not None
        return now - self.since > _interval(self.definition) + _PATIENCE

    @property
    def failure(self) -> str | None:
        """The first line of what its last evaluation failed with."""
        if self.last is None or self.last.status != TickStatus.FAILURE:
            return None
        error = self.last.error
        while error is not None and error.cause is not None:
            error = error.cause
        lines = (error.message if error else "").strip().splitlines()
        return (lines[0] if lines else "without a word")[:_LONGEST_ERROR]

    @property
    def is_unreachable(self) -> bool:
        """Whether its last evaluation failed because its code was not to be reached."""
        error = self.last.error if self.last and self.last.status == TickStatus.FAILURE else None
        return error is not None and error.cls_name in _UNREACHABLE


def standing_still(
    instance: dg.DagsterInstance,
    *,
    is_daemon_alive: bool,
    daemon_since: datetime | None = None,
    now: datetime | None = None,
) -> Iterator[str]:
    """A line for each schedule and sensor that is switched off; and where the daemon lives, for those it fails with.

    One line for all where the code server is what is missing. `daemon_since`: when the daemon began, if that is known.
    """
    now = now or datetime.now(UTC)
    watched = list(_watched(instance))
    for one in watched:
        if one.is_off:
            yield f"{one.name} is switched off, so its work is not done; {_SWITCH_ON}."
    if not is_daemon_alive:
        return
    on = [one for one in watched if not one.is_off]
    if on and all(one.since is None for one in on):
        if daemon_since is not None and now - daemon_since > _PATIENCE:
            yield f"code server: no schedule or sensor has ever been evaluated; {_CODE_SERVER}."
        return
    if (last := _since_when_nothing_was(on, now)) is not None:
        yield (
            f"code server: no schedule or sensor has been evaluated since {last.isoformat(timespec='seconds')}; "
            f"{_CODE_SERVER}."
        )
        return
    for one in on:
        if one.failure is not None and not _was_started_since(instance, one):
            yield (
                f"{one.name}: its last evaluation failed: {one.failure.rstrip('.')}; correct that: it is evaluated "
                "again at its next tick."
            )
        elif one.is_late(now):
            since = one.since.isoformat(timespec="seconds") if one.since else ""
            yield f"{one.name} has not been evaluated since {since}; see the daemon's log, then restart the daemon."


def _since_when_nothing_was(on: Sequence[_Watched], now: datetime) -> datetime | None:
    """When something of what is `on` was evaluated last, where none of it is any more; None where all is well.

    The daemon notes an evaluation that met no code server, and from then on none, until there is one again. Only what
    comes by the minute or more often shows it: the rest is not due for hours.
    """
    frequent = [one for one in on if _is_frequent(one) and one.since is not None]
    last = max((one.since for one in frequent if one.since is not None and not one.is_unreachable), default=None)
    failed = [one.since for one in on if one.since is not None and one.is_unreachable]
    if failed and (last is None or max(failed) >= last):
        return last or min(failed)
    if last is None:
        return None
    return last if now - last > min(_interval(one.definition) for one in frequent) + _SILENCE else None


def _watched(instance: dg.DagsterInstance) -> Iterator[_Watched]:
    storage = instance.schedule_storage
    known = instance.all_instigator_state()
    watched: list[dg.ScheduleDefinition | dg.SensorDefinition] = [*SCHEDULES, *SENSORS]
    for definition in watched:
        states = [state for state in known if state.instigator_name == definition.name]
        last = [
            tick
            for state in states
            if storage is not None
            for tick in storage.get_ticks(state.instigator_origin_id, state.selector_id, limit=1)
        ]
        yield _Watched(definition, states, max(last, key=lambda tick: tick.timestamp, default=None))


def _started(state: InstigatorState) -> float | None:
    data = state.instigator_data
    if isinstance(data, ScheduleInstigatorData):
        return data.start_timestamp
    return data.last_sensor_start_timestamp if isinstance(data, SensorInstigatorData) else None


def _is_frequent(one: _Watched) -> bool:
    if isinstance(one.definition, dg.ScheduleDefinition):
        return one.definition.cron_schedule == "* * * * *"
    return _interval(one.definition) <= _MINUTE


def _interval(definition: dg.ScheduleDefinition | dg.SensorDefinition) -> timedelta:
    """How often a sensor, or a schedule that comes by the minute, is evaluated."""
    if isinstance(definition, dg.ScheduleDefinition):
        return _MINUTE
    return timedelta(seconds=definition.minimum_interval_seconds or _BY_DEFAULT)


def _was_started_since(instance: dg.DagsterInstance, one: _Watched) -> bool:
    """Whether a run of a schedule whose evaluation failed was launched all the same, by hand or by a later tick."""
    if not isinstance(one.definition, dg.ScheduleDefinition) or one.since is None:
        return False
    since = dg.RunsFilter(job_name=one.definition.job_name, created_after=one.since)
    return bool(instance.get_runs(since, limit=1))
