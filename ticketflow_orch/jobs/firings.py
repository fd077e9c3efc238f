"""Firings: every start of scheduled work, recorded first thing. The claim decides about the effect; this explains.

A window that was started more than once, by other runs or by the same one again, is a duplicate; a retry of a run that
failed is not. Windows that were not started are in `missed`, those that were not completed in `unfinished`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Literal

from sqlalchemy import Connection

from ticketflow_orch.clock import parse_instant
from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.outbox.alerts import Alert

# Set by every schedule on the runs it requests: the tick's own tag is hidden. Retries and re-executions inherit it.
SCHEDULED_FOR = "ticketflow/scheduled_for"
# Which pass of which month a further run of its settlement works on, and the how manieth run of it that is.
SHARED_MONTH, SHARED_PASS, SHARD = "ticketflow/month", "ticketflow/pass", "ticketflow/shard"
# Dagster's own tags, which the business knows by their names alone.
PARENT_RUN = "dagster/parent_run_id"
ROOT_RUN = "dagster/root_run_id"
PARTITION = "dagster/partition"
MAX_RUNTIME = "dagster/max_runtime"
PARTITION_RANGE = ("dagster/asset_partition_range_start", "dagster/asset_partition_range_end")


class Outcome(StrEnum):
    """What a start is: the first of its window, another one, or the retry of a run that failed."""

    ACCEPTED = "ACCEPTED"
    DUPLICATE = "DUPLICATE"
    RETRY = "RETRY"


@dataclass(frozen=True, slots=True)
class Firing:
    """One start of `job` for the window `scheduled_for` (the tick's time, UTC), by the Dagster run `run_id`.

    `partition`: the one that it is for, or the first and the last of several.
    """

    job: str
    scheduled_for: datetime
    run_id: str
    parent_run_id: str | None = None
    partition: str | None = None

    @property
    def key(self) -> str:
        """The window's idempotency key: the tick's time in UTC, and the partition where there is one."""
        window = self.scheduled_for.astimezone(UTC).isoformat(timespec="seconds")
        return window if self.partition is None else f"{window} {self.partition}"


def window_tags(tick: datetime) -> dict[str, str]:
    """The tags by which a run knows the window that it is for."""
    return {SCHEDULED_FOR: tick.isoformat(timespec="seconds")}


def scheduled_firing(job: str, run_id: str, tags: Mapping[str, str]) -> Firing | None:
    """The firing of the run `run_id`, by its tags; None when no schedule asked for it.

    Raises:
        InvalidInput: the window's tag is not an instant; somebody has written it by hand.
    """
    if SCHEDULED_FOR not in tags:
        return None
    return Firing(job, parse_instant(tags[SCHEDULED_FOR]), run_id, tags.get(PARENT_RUN), partition_in(tags))


def partition_in(tags: Mapping[str, str]) -> str | None:
    """The partition that a run is for, or the first and the last of several."""
    first, last = (tags.get(name) for name in PARTITION_RANGE)
    return f"{first} to {last}" if first and last else tags.get(PARTITION)


def firing_by_hand(job: str, run_id: str, tags: Mapping[str, str], launched_at: datetime) -> Firing:
    """The firing of a run that a person launched at `launched_at`: a window of its own, shared with its retries."""
    return Firing(job, launched_at, run_id, tags.get(PARENT_RUN), f"by hand {tags.get(ROOT_RUN, run_id)}")


@dataclass(frozen=True, slots=True)
class DuplicateWindow:
    """A window with more than one start that is no retry. `kind`: other runs, or one run delivered again."""

    job: str
    scheduled_for: datetime
    partition: str | None
    kind: Literal["scheduled twice", "redelivered"]
    runs: tuple[str, ...]
    hosts: tuple[str, ...]

    @property
    def alert(self) -> Alert:
        """What operators learn of it."""
        window = self.scheduled_for.astimezone(UTC).isoformat(timespec="seconds")
        said = {
            "job": self.job,
            "scheduled_for": window,
            "partition": self.partition,
            "why": self.kind,
            "runs": list(self.runs),
            "hosts": list(self.hosts),
        }
        return Alert("DuplicateFiring", f"{self.job} {window} {self.partition or ''}".strip(), said, subject=self.job)


def record(connection: Connection, firing: Firing) -> Outcome:
    """Record the firing and say what it is: the first of its window, a retry, or a duplicate.

    Starts of one window are recorded one after the other: the window's claim row would be too late, it may not be there
    yet, so a lock that lives as long as this transaction puts them in a row.
    """
    connection.exec_driver_sql(
        "SELECT pg_advisory_xact_lock(hashtextextended(%(window)s, 0))", {"window": f"{firing.job} {firing.key}"}
    )
    values = _of_this_process(firing) | {"parent_run_id": firing.parent_run_id}
    return Outcome(connection.exec_driver_sql(_RECORD, values).scalar_one())


def recorded_here(connection: Connection, firing: Firing) -> Outcome | None:
    """What this process has found the firing to be, where an attempt to record it was committed unnoticed."""
    outcome = connection.exec_driver_sql(_RECORDED, _of_this_process(firing)).scalar_one_or_none()
    return None if outcome is None else Outcome(outcome)


def _of_this_process(firing: Firing) -> dict[str, object]:
    return {
        "job": firing.job,
        "scheduled_for": firing.scheduled_for,
        "partition": firing.partition,
        "run_id": firing.run_id,
        "host": socket.gethostname(),
        "pid": os.getpid(),
    }


def duplicate_windows(connection: Connection, within: timedelta = timedelta(days=7)) -> tuple[DuplicateWindow, ...]:
    """The windows with a duplicate firing `within` the last days, whether or not anybody has been alerted of them."""
    rows = connection.exec_driver_sql(_DUPLICATES, {"within": within})
    return tuple(
        DuplicateWindow(
            row.job,
            row.scheduled_for,
            row.partition,
            "scheduled twice" if len(row.runs) > 1 else "redelivered",
            tuple(row.runs),
            tuple(row.hosts),
        )
        for row in rows
    )


_RECORD = sql(__file__, "record")

_RECORDED = sql(__file__, "recorded")

_DUPLICATES = sql(__file__, "duplicates")
