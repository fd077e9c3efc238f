"""Windows that should have started and did not, and work that waits longer than its schedule allows.

Which windows there should be is for the caller to say; here they are held against the firings that are on record.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection

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
        told = {"job": self.job, "scheduled_for": window, "partition": self.partition}
        return Alert("WindowMissed", f"{self.job} {window} {self.partition or ''}".strip(), told, subject=self.job)


@dataclass(frozen=True, slots=True)
class Overdue:
    """Work of `job` that has been due `since` (aware), longer than its schedule allows."""

    job: str
    since: datetime

    @property
    def alert(self) -> Alert:
        """What operators learn of it."""
        since = self.since.astimezone(UTC).isoformat(timespec="seconds")
        told = {"job": self.job, "due_since": since}
        return Alert("WorkOverdue", f"{self.job} {since}", told, subject=self.job, recurs=True)


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


def overdue(job: str, due_since: datetime | None, now: datetime, interval: timedelta) -> Overdue | None:
    """The oldest due work of `job`, when three of its intervals have gone by without it."""
    if due_since is None or now - due_since <= 3 * interval:
        return None
    return Overdue(job, due_since)


_WITHOUT_FIRING = """
    SELECT place FROM unnest(
        %(jobs)s::text[], %(instants)s::timestamptz[], %(partitions)s::text[]
    ) WITH ORDINALITY AS expected (job, scheduled_for, partition, place)
    WHERE NOT EXISTS (
        SELECT FROM job_firing
        WHERE job_firing.job = expected.job AND job_firing.scheduled_for = expected.scheduled_for
            AND job_firing.partition IS NOT DISTINCT FROM expected.partition)
    ORDER BY place
"""
