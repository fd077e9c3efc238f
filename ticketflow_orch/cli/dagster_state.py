"""What Dagster's storage says about its daemon, pools and runs, as `ticketflow doctor` and `ticketflow health` ask it.

Whether schedules and sensors are evaluated is in `automation`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

from dagster import DagsterInstance, DagsterRunStatus, RunsFilter
from dagster_shared.error import SerializableErrorInfo
from sqlalchemy.exc import InterfaceError, OperationalError

from ticketflow_orch.cli.findings import Finding, State
from ticketflow_orch.dagster_host.daemons import DaemonMark, two_daemons, working_daemons
from ticketflow_orch.dagster_host.run_launcher import ProcessRunLauncher
from ticketflow_orch.dagster_host.run_workers import RunWorker
from ticketflow_orch.local.process_identity import Life

if TYPE_CHECKING:
    from dagster_postgres import PostgresRunStorage

_CUT_OFF = {OperationalError.__name__, InterfaceError.__name__}
_LONGEST_SILENCE = 120  # seconds; a heartbeat comes every 30
# Seconds that a run may be in such a state: what dagster.yaml says, and two polls of run monitoring.
_LONGEST_IN = {
    DagsterRunStatus.NOT_STARTED: 60 + 60,
    DagsterRunStatus.STARTING: 60 + 60,
    DagsterRunStatus.CANCELING: 60 + 60,
    DagsterRunStatus.STARTED: math.inf,
}


def paused_pools(instance: DagsterInstance) -> list[str]:
    """The pools of which no run starts, since their limit is 0."""
    return sorted(pool.name for pool in instance.event_log_storage.get_pool_limits() if pool.limit == 0)


def daemon(instance: DagsterInstance) -> Finding:
    """Whether one daemon, and no more, has lately shown a sign of life, in all of its parts."""
    two = two_daemons(_daemons(instance))
    if two is not None:
        return Finding("daemon", State.WRONG, two, "end all but one")
    beats = instance.get_daemon_heartbeats()
    required = set(instance.get_required_daemon_types())
    # Dagster itself calls a daemon healthy for half an hour after its last sign of life.
    oldest = time.time() - _LONGEST_SILENCE
    silent = sorted(kind for kind in required if kind not in beats or beats[kind].timestamp < oldest)
    if set(silent) == required:
        seen = max((datetime.fromtimestamp(beat.timestamp, UTC) for beat in beats.values()), default=None)
        detail = "was never seen" if seen is None else f"was last seen {seen:%Y-%m-%d %H:%M:%S} UTC"
        return Finding("daemon", State.STOPPED, detail, "no schedule runs without it; start it with `ticketflow ui`")
    failing = sorted(
        kind
        for kind, beat in beats.items()
        if kind in required and not all(_was_cut_off(error) for error in beat.errors or ())
    )
    if silent or failing:
        detail = "; ".join(
            f"{what}: {', '.join(kinds)}" for what, kinds in (("silent", silent), ("failing", failing)) if kinds
        )
        return Finding("daemon", State.WRONG, detail, "read its log, then restart it")
    return Finding("daemon", State.OK, "alive")


def _was_cut_off(error: SerializableErrorInfo) -> bool:
    """Whether `error` is that the storage could not be reached.

    A sign of life that carries it was written to the same storage later, and carries it for five minutes.
    """
    cause = error.cause
    return error.cls_name in _CUT_OFF or (cause is not None and _was_cut_off(cause))


def runs_without_worker(instance: DagsterInstance) -> Iterator[str]:
    """One line for each run that is in progress and will not end, or of which that cannot be known."""
    # Where others execute runs, it is not even loaded: that of Kubernetes wants a cluster around it.
    configured = instance.get_ref().run_launcher_data
    if configured is None or configured.class_name != ProcessRunLauncher.__name__:
        return
    launcher = cast("ProcessRunLauncher", instance.run_launcher)
    daemons = [mark.process for mark in _daemons(instance)]
    for record in instance.get_run_records(RunsFilter(statuses=list(_LONGEST_IN))):
        run = record.dagster_run
        name = f"run {run.run_id} of {run.job_name}"
        since = time.time() - record.update_timestamp.timestamp()
        worker = RunWorker.named(run.run_id, run.tags)
        if launcher.is_without_worker(run):
            which = f"its worker ({worker.process})" if worker else "its worker"
            yield f"{name}: {which} is gone; the daemon ends it within a minute, or terminate it on its page."
        elif since > _LONGEST_IN[run.status]:
            yield f"{name}: {run.status} for {since:.0f} s; the daemon should have ended it: read its log, restart it."
        elif (
            run.status == DagsterRunStatus.STARTED
            and worker is not None
            and launcher.life_of_worker(run) == Life.OUT_OF_SIGHT
            and not any(worker.process.shares_host_with(daemon) for daemon in daemons)
        ):
            yield (
                f"{name}: whether its worker ({worker.process}) lives cannot be known, and no daemon works there; "
                "where it has ended, terminate the run on its page."
            )


def daemon_since(instance: DagsterInstance) -> datetime | None:
    """When the daemon that works now began, by the database's clock; None where none does."""
    marks = _daemons(instance)
    return datetime.fromtimestamp(min(mark.first for mark in marks), UTC) if marks else None


def _daemons(instance: DagsterInstance) -> list[DaemonMark]:
    with cast("PostgresRunStorage", instance.run_storage).connect() as connection:
        return working_daemons(connection)
