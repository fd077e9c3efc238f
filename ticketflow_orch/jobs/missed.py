"""Windows that should have started and did not, and work that waits longer than its schedule allows.

Which windows there should be is for the caller to say; here they are compared with the firings on record. For how long
work may wait is in `intervals`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Connection

from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.jobs.intervals import ScheduledJob
from ticketflow_orch.outbox.alerts import Alert


@dataclass(frozen=True, slots=True)
class Expected:
    """A window that a schedule stands for: the tick's time (aware), and the partition where there is one."""

    job: str
    scheduled_for: datetime
    partition: str | None = None

    @property
    def alert(self) -> Alert:
        """What operators learn when it was missed."""
        window = self.scheduled_for.astimezone(UTC).isoformat(timespec="seconds")
        said = {"job": self.job, "scheduled_for": window, "partition": self.partition}
        return Alert("WindowMissed", f"{self.job} {window} {self.partition or ''}".strip(), said, subject=self.job)


@dataclass(frozen=True, slots=True)
class Overdue:
    """Work of `job` that has been due `since` (aware), longer than its schedule allows."""

    job: str
    since: datetime

    @property
    def alert(self) -> Alert:
        """What operators learn of it."""
        since = self.since.astimezone(UTC).isoformat(timespec="seconds")
        said = {"job": self.job, "due_since": since}
        return Alert("WorkOverdue", f"{self.job} {since}", said, subject=self.job, recurs=True)


def without_firing(connection: Connection, windows: Iterable[Expected]) -> tuple[Expected, ...]:
    """Those of `windows` for which no start is on record, in their order."""
    wanted: Sequence[Expected] = list(windows)
    values = {
        "jobs": [window.job for window in wanted],
        "instants": [window.scheduled_for for window in wanted],
        "partitions": [window.partition for window in wanted],
    }
    return tuple(wanted[place - 1] for place in connection.exec_driver_sql(_WITHOUT_FIRING, values).scalars())


def first_firing(connection: Connection) -> datetime | None:
    """When the oldest start on record was. Of windows before it nobody can tell whether they were missed."""
    first: datetime | None = connection.exec_driver_sql("SELECT min(fired_at) FROM job_firing").scalar_one()
    return first


def overdue(job: ScheduledJob, due_since: datetime | None, now: datetime) -> Overdue | None:
    """The oldest due work of `job`, when it has waited for longer than it may."""
    if due_since is None or now - due_since <= job.longest_due:
        return None
    return Overdue(job.name, due_since)


_WITHOUT_FIRING = sql(__file__, "without_firing")
