"""Every job by its name, its pool and its hours, and how late is too late: each of these rules stands here alone.

What a job does is in the module of `schedules/` that has its name. How soon an event must be delivered is a setting.
How long something may stand in the way of a month is said by `monitoring.obstacles`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

_MINUTE, _DAY = timedelta(minutes=1), timedelta(days=1)
# So many intervals may go by before work that is due is overdue.
_MISSED_INTERVALS = 3


@dataclass(frozen=True, slots=True)
class Job:
    """A job of Dagster. `name`: what firings, claims, rows that were left out and alerts know it by.

    `pool`: that of its op or asset; None where it has none. `asset`: what it materializes, where that has another name.
    """

    name: str
    pool: str | None = None
    asset: str | None = None

    @property
    def dagster_name(self) -> str:
        """What Dagster calls it."""
        return f"{self.name}{_SUFFIX}"


@dataclass(frozen=True, slots=True)
class ScheduledJob(Job):
    """A job that a schedule starts: at each `cron`, in the business time zone, which comes every `interval`."""

    cron: str = ""
    interval: timedelta = _DAY

    @property
    def longest_due(self) -> timedelta:
        """For how long its work may be due."""
        return _MISSED_INTERVALS * self.interval


def job_of(dagster_name: str) -> str:
    """The name of the job that Dagster calls `dagster_name`."""
    return dagster_name.removesuffix(_SUFFIX)


_SUFFIX = "_job"

CLOSE_EVENTS = ScheduledJob("close_events", pool="close_events", cron="30 4 * * *")
# By day 2, 05:00, every time zone on earth has left the month before.
MONTHLY_SETTLEMENT = ScheduledJob("monthly_settlement", pool="settlement", cron="0 5 2-31 * *")
CLOSE_BOOKS = ScheduledJob("close_books", pool="books", asset="closed_books", cron="0 6 * * *")
HOUSEKEEPING = ScheduledJob("housekeeping", pool="housekeeping", cron="0 6 * * *")
# After the books had their turn.
PAYOUTS = ScheduledJob("payouts", pool="payouts", cron="30 6 * * *")
# After the payouts had their turn.
STATEMENTS = ScheduledJob("statements", pool="statements", asset="settlement_statements", cron="0 7 * * *")
# After the statements had their turn. It changes nothing, so nothing keeps two of it apart.
AUDIT = ScheduledJob("audit", cron="30 7 * * *")
EXPIRE_RESERVATIONS = ScheduledJob(
    "expire_reservations", pool="expire_reservations", cron="* * * * *", interval=_MINUTE
)
SEND_REMINDERS = ScheduledJob("send_reminders", pool="send_reminders", cron="*/15 * * * *", interval=15 * _MINUTE)
# Started by sensors.
RELAY_OUTBOX = Job("relay_outbox", pool="relay_outbox")
# A further run of a month's settlement, beside the one that leads it.
SETTLEMENT_SHARD = Job("settlement_shard", pool="settlement_shards")
# Started by hand.
REDRIVE_OUTBOX = Job("redrive_outbox")

JOBS = (
    CLOSE_EVENTS,
    MONTHLY_SETTLEMENT,
    CLOSE_BOOKS,
    HOUSEKEEPING,
    PAYOUTS,
    STATEMENTS,
    AUDIT,
    EXPIRE_RESERVATIONS,
    SEND_REMINDERS,
    RELAY_OUTBOX,
    SETTLEMENT_SHARD,
    REDRIVE_OUTBOX,
)
# Those whose work is found by what is due in the database, so that its age is known at any time.
WATCHED_BY_AGE = (CLOSE_EVENTS, EXPIRE_RESERVATIONS, SEND_REMINDERS)
# Every pool that an asset or op of the code location names; a test holds the two together.
POOLS = tuple(job.pool for job in JOBS if job.pool is not None)

# How late a run may be requested before its window counts as missed.
LATEST_REQUEST = 15 * _MINUTE
# For how long a run that has started may still be about to claim its window.
MAY_STILL_CLAIM = 5 * _MINUTE
# A month is settled by the end of this day of the next one.
LAST_SETTLEMENT_DAY = 3
# What follows a settlement is due every day, and a weekend may pass: closing, paying, statements.
LONGEST_STANDSTILL = 3 * _DAY
