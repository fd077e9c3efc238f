"""Windows that should have started and did not: of schedules that always request a run, and of the settlement.

Schedules that skip when nothing is due have no window to miss; of theirs it is the work itself that is watched.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

import dagster as dg
from sqlalchemy import Connection

from resources import ClockResource, DatabaseResource, OutboxResource
from schedules import ALWAYS_REQUESTING, settlement_schedule
from schedules.settlement import settles
from schedules.windows import UNFINISHED
from sensors.alerting import alert
from ticketflow_orch.clock import parse_instant
from ticketflow_orch.closing.turn import months_to_close
from ticketflow_orch.dagster_host.dagster_internals import schedule_execution_time_iterator
from ticketflow_orch.db.engine import transaction
from ticketflow_orch.db.errors import is_one_row_s
from ticketflow_orch.db.installation import decided, read_installation
from ticketflow_orch.jobs.firings import PARTITION, window_tags
from ticketflow_orch.jobs.intervals import (
    CLOSE_BOOKS,
    EXPIRE_RESERVATIONS,
    LATEST_REQUEST,
    MONTHLY_SETTLEMENT,
    PAYOUTS,
    SEND_REMINDERS,
    STATEMENTS,
    ScheduledJob,
    job_of,
)
from ticketflow_orch.jobs.missed import Expected, Overdue, overdue, without_firing
from ticketflow_orch.months import Month
from ticketflow_orch.outbox.alerts import resolve_others
from ticketflow_orch.payouts.request import payouts_due_months
from ticketflow_orch.periods.state import ready_since
from ticketflow_orch.settings import settings
from ticketflow_orch.settlement.due import months_due_at
from ticketflow_orch.statements.invariants import months_to_issue
from ticketflow_orch.ticketing.lifecycle import LifecycleRules
from ticketflow_orch.ticketing.reminders import ReminderRules, oldest_due_reminder
from ticketflow_orch.ticketing.reservations import oldest_due_reservation

INTERVAL = settings().watch_interval


@dataclass(frozen=True, slots=True)
class Look:
    """What a look left behind: until when windows are judged, when it was, and whose work it found overdue."""

    judged_until: datetime
    at: datetime
    overdue: tuple[str, ...] = ()

    @classmethod
    def parse(cls, cursor: str) -> "Look":
        """The look that `cursor` remembers."""
        known = json.loads(cursor)
        return cls(parse_instant(known["judged_until"]), parse_instant(known["at"]), tuple(known["overdue"]))

    @property
    def cursor(self) -> str:
        """What `parse` reads."""
        return json.dumps(
            {"judged_until": self.judged_until.isoformat(), "at": self.at.isoformat(), "overdue": self.overdue}
        )


@dg.sensor(
    minimum_interval_seconds=round(INTERVAL.total_seconds()),
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Alerts once of each window that did not start, and of work that waits beyond three intervals.",
)
def missed_windows(
    context: dg.SensorEvaluationContext, database: DatabaseResource, clock: ClockResource, outbox: OutboxResource
) -> dg.SkipReason:
    """Starts no run: what it finds goes to the outbox."""
    now = clock.now()
    if context.cursor is None:
        context.update_cursor(Look(now, now).cursor)
        return dg.SkipReason("Windows are judged from now on.")
    last = Look.parse(context.cursor)
    if now - last.at > 2 * INTERVAL:
        # Dagster makes up for the newest of the missed ticks. It gets until the next look to do so.
        context.update_cursor(replace(last, at=now).cursor)
        return dg.SkipReason(f"Nobody has looked since {last.at.isoformat(timespec='seconds')}; judged next time.")
    # A clock that was ahead has judged what was to come, which is judged when it comes.
    after = min(last.judged_until, now)
    until = max(after, now - LATEST_REQUEST)
    with database.engine("missed_windows") as engine, transaction(engine) as connection:
        missed = without_firing(connection, windows(connection, context.instance, after, until))
        late = overdue_work(connection, now)
        alerts = [window.alert for window in missed] + [work.alert for work in late if work.job not in last.overdue]
        outcome = alert(context, connection, alerts, now, outbox.append)
        resolve_others(connection, "WorkOverdue", {work.job for work in late}, now, outbox.append)
    context.update_cursor(Look(until, now, tuple(work.job for work in late)).cursor)
    return outcome


def windows(
    connection: Connection, instance: dg.DagsterInstance, after: datetime, until: datetime
) -> Iterator[Expected]:
    """The windows after `after` and up to `until` that no queued or running run is going to start."""
    for schedule in ALWAYS_REQUESTING:
        for tick in ticks(schedule, after, until):
            waiting = dg.RunsFilter(job_name=schedule.job_name, tags=window_tags(tick), statuses=UNFINISHED)
            if not instance.get_runs(waiting, limit=1):
                yield Expected(job_of(schedule.job_name), tick)
    for tick in ticks(settlement_schedule, after, until):
        for month in months_due_at(connection, tick, read_installation(connection).first_month):
            if not was_in_a_run(instance, month, tick):
                yield Expected(MONTHLY_SETTLEMENT.name, tick, str(month))


def ticks(schedule: dg.ScheduleDefinition, after: datetime, until: datetime) -> Iterator[datetime]:
    """The instants after `after` and up to `until` at which `schedule` ticks."""
    for tick in schedule_execution_time_iterator(
        after.timestamp(), schedule.cron_schedule, schedule.execution_timezone
    ):
        if tick > until:
            return
        if tick > after:
            yield tick


def was_in_a_run(instance: dg.DagsterInstance, month: Month, tick: datetime) -> bool:
    """Whether `month` was being settled or queued at `tick`, or came to be soon after, no matter who launched it."""
    tags = {PARTITION: str(month)}
    records = instance.get_run_records(dg.RunsFilter(tags=tags, created_before=tick + LATEST_REQUEST))
    return any(
        settles(record.dagster_run) and (record.dagster_run.status in UNFINISHED or record.update_timestamp >= tick)
        for record in records
    )


def overdue_work(connection: Connection, now: datetime) -> list[Overdue]:
    """Work of the schedules that skip when nothing is due, waiting for longer than three of their intervals."""
    rules = LifecycleRules.configured(settings(), now)
    reminding = ReminderRules.configured(decided(connection, settings()), now)
    questions: dict[ScheduledJob, Callable[[], datetime | None]] = {
        EXPIRE_RESERVATIONS: lambda: oldest_due_reservation(connection, rules),
        SEND_REMINDERS: lambda: oldest_due_reminder(connection, reminding),
    }
    for job, months in waiting_months(connection, now).items():
        if months:
            questions[job] = partial(ready_since, connection, months[0])
    found = [overdue(job, answered(connection, question), now) for job, question in questions.items()]
    return [work for work in found if work is not None]


def answered(connection: Connection, question: Callable[[], datetime | None]) -> datetime | None:
    """The answer to `question`; None where a row cannot be read, which `ticketflow health` names: all others count."""
    try:
        with connection.begin_nested():
            return question()
    except Exception as error:
        if not is_one_row_s(error):
            raise
        return None


def waiting_months(connection: Connection, now: datetime) -> dict[ScheduledJob, tuple[Month, ...]]:
    """For each daily job on months that skips when there is none: the months that it could take on, in order."""
    installed = read_installation(connection)
    return {
        CLOSE_BOOKS: tuple(months_to_close(connection, now, installed.first_month)) if installed.auto_close else (),
        PAYOUTS: payouts_due_months(connection),
        STATEMENTS: months_to_issue(connection),
    }
