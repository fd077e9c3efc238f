"""Runs that failed and that nothing will start again by itself: alerted once a job, until they are made up for.

Asks the instance instead of waiting for its events: what is not written down because the database is away is found by
the next look.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice

import dagster as dg

from resources import ClockResource, DatabaseResource, OutboxResource
from schedules.settlement import settles
from sensors.alerting import alert
from ticketflow_orch.clock import parse_instant
from ticketflow_orch.dagster_host.dagster_internals import (
    AUTO_RETRY_RUN_ID_TAG,
    SCHEDULE_NAME_TAG,
    SENSOR_NAME_TAG,
    WILL_RETRY_TAG,
)
from ticketflow_orch.db.engine import transaction
from ticketflow_orch.jobs.firings import PARTITION, PARTITION_RANGE, SCHEDULED_FOR, SHARED_MONTH, partition_in
from ticketflow_orch.jobs.intervals import JOBS, job_of
from ticketflow_orch.months import Month, months_between
from ticketflow_orch.outbox.alerts import CAUSE_GONE, Alert, Severity, Standing, resolve, standing

KIND = "RunFailed"
# A run of the past is found again when its record changes; the memory of alerts keeps it from being alerted twice.
_OVERLAP = timedelta(minutes=5)
# Shorter than the overlap, within which what was to be retried is looked at again.
_RETRIED_WITHIN = timedelta(minutes=3)
# What failed while nobody could look was alerted later; no run that failed outlives the daemon for longer.
_ALERTED_WITHIN = timedelta(days=7)
_AT_ONCE = 200
# In one look: no more than that fail within the overlap, where the next look begins.
_MOST = 2_000
# The job of runs that are launched from assets, as a backfill's are; and the assets of jobs that are called otherwise.
_OF_THE_UI = "__ASSET_JOB"
_ASSETS = {job.dagster_name: job.asset for job in JOBS if job.asset is not None}
_LONGEST_WORDS = 300


@dataclass(frozen=True, slots=True)
class FailedRun:
    """A run that failed at `at`: what it was to do, for which window and partition, and the first line of its error.

    `by_hand`: somebody launched it, and sees it in the UI.
    """

    work: str
    run_id: str
    at: datetime
    window: str | None
    partition: str | None
    error: str
    by_hand: bool

    @property
    def alert(self) -> Alert:
        """What operators learn of it, with the other failures of the same work."""
        said = {
            "job": self.work, "run_id": self.run_id, "scheduled_for": self.window, "partition": self.partition,
            "error": self.error,
        }  # fmt: skip
        subject = f"{self.work} by hand" if self.by_hand else self.work
        return Alert(
            KIND, f"{self.work} {self.run_id}", said, subject=subject, severity=Severity.INFO if self.by_hand else None
        )


@dg.sensor(
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Alerts of runs that failed, one alert a job, and ends it when they are made up for.",
)
def failed_runs(
    context: dg.SensorEvaluationContext, database: DatabaseResource, clock: ClockResource, outbox: OutboxResource
) -> dg.SkipReason:
    """Starts no run: what it finds goes to the outbox. What failed long before the first look is not alerted."""
    # A clock that was ahead for a while has left a cursor of its own.
    since = min(parse_instant(context.cursor), datetime.now(UTC)) if context.cursor else datetime.now(UTC)
    records = list(islice(failures(context.instance, since - _OVERLAP), _MOST))
    alerts = [described(context.instance, one).alert for one in records if not is_retried(one)]
    now = clock.now()
    with database.engine("failed_runs") as engine, transaction(engine) as connection:
        outcome = alert(context, connection, alerts, now, outbox.append)
        open_ = [one for one in standing(connection, [KIND]) if one.severity != Severity.INFO]
        resolve(connection, made_up_for(context.instance, open_), now, CAUSE_GONE, outbox.append)
    seen = max((one.update_timestamp for one in records), default=since)
    context.update_cursor(max(since, seen).isoformat())
    return outcome


def failures(instance: dg.DagsterInstance, since: datetime) -> Iterator[dg.RunRecord]:
    """The runs that failed, or whose record of it changed, after `since`, in that order; asked for by the page."""
    while True:
        failed = dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE], updated_after=since.astimezone(UTC))
        page = instance.get_run_records(failed, limit=_AT_ONCE, order_by="update_timestamp", ascending=True)
        yield from page
        if len(page) < _AT_ONCE:
            return
        since = page[-1].update_timestamp


def is_retried(failed: dg.RunRecord) -> bool:
    """Whether another run is started for it anyway: Dagster says so first, and at times has none to start."""
    tags = failed.dagster_run.tags
    waits = datetime.now(UTC) - failed.update_timestamp.astimezone(UTC) < _RETRIED_WITHIN
    return tags.get(WILL_RETRY_TAG) == "true" and (AUTO_RETRY_RUN_ID_TAG in tags or waits)


def standing_failures(instance: dg.DagsterInstance, since: datetime) -> Iterator[FailedRun]:
    """The last failure of each work and partition after `since` that no later run has made up for.

    Of runs that a schedule or a sensor asked for.
    """
    last: dict[tuple[str, str | None], dg.RunRecord] = {}
    for failed in failures(instance, since):
        if not is_by_hand(failed.dagster_run) and not is_retried(failed):
            last[work_of(failed.dagster_run), partition_of(failed.dagster_run)] = failed
    for failed in last.values():
        if not is_made_up_for(instance, failed):
            yield described(instance, failed)


def made_up_for(instance: dg.DagsterInstance, open_: Sequence[Standing]) -> list[int]:
    """The ids of those of the alerts `open_` whose work has nothing left that failed since and is not made up for."""
    if not open_:
        return []
    left = list(standing_failures(instance, min(alert.first_at for alert in open_) - _ALERTED_WITHIN))
    return [
        alert.id
        for alert in open_
        if not any(one.work == alert.subject and one.at > alert.first_at - _ALERTED_WITHIN for one in left)
    ]


def is_made_up_for(instance: dg.DagsterInstance, failed: dg.RunRecord) -> bool:
    """Whether runs that were created later did the same work, for all of its partitions, and succeeded.

    What a further run of a month's settlement left is done when the month is: the run that leads it began before.
    """
    run = failed.dagster_run
    if SHARED_MONTH in run.tags:
        led = dg.RunsFilter(tags={PARTITION: run.tags[SHARED_MONTH]}, updated_after=failed.create_timestamp)
        return any(settles(one) and one.is_success for one in instance.get_runs(led))
    did, left = False, _partitions(run)
    for name in dict.fromkeys((run.job_name, _OF_THE_UI)):
        for later in _succeeded(instance, name, failed.create_timestamp):
            if _works(later) & _works(run):
                did, left = True, left - _partitions(later)
            if did and not left:
                return True
    return False


def _succeeded(instance: dg.DagsterInstance, job: str, since: datetime) -> Iterator[dg.DagsterRun]:
    """The runs of `job` that were created after `since` and succeeded, the last first; asked for by the page."""
    succeeded = dg.RunsFilter(job_name=job, statuses=[dg.DagsterRunStatus.SUCCESS], created_after=since)
    page = instance.get_runs(succeeded, limit=_AT_ONCE)
    yield from page
    while len(page) == _AT_ONCE:
        page = instance.get_runs(succeeded, cursor=page[-1].run_id, limit=_AT_ONCE)
        yield from page


def described(instance: dg.DagsterInstance, failed: dg.RunRecord) -> FailedRun:
    """What people learn of it."""
    run = failed.dagster_run
    return FailedRun(
        work=work_of(run),
        run_id=run.run_id,
        at=failed.update_timestamp.astimezone(UTC),
        window=run.tags.get(SCHEDULED_FOR),
        partition=partition_of(run),
        error=why(instance, run.run_id),
        by_hand=is_by_hand(run),
    )


def work_of(run: dg.DagsterRun) -> str:
    """What a run is there for: the name of its op, or of its assets where the UI made a job for them."""
    if run.job_name == _OF_THE_UI and run.asset_selection:
        return ", ".join(sorted(key.to_user_string() for key in run.asset_selection))
    return job_of(run.job_name)


def partition_of(run: dg.DagsterRun) -> str | None:
    """The partition that a run is for, or the first and the last of several."""
    return partition_in(run.tags)


def is_by_hand(run: dg.DagsterRun) -> bool:
    """Whether neither a schedule nor a sensor asked for it."""
    return not {SCHEDULE_NAME_TAG, SENSOR_NAME_TAG, SCHEDULED_FOR} & run.tags.keys()


def why(instance: dg.DagsterInstance, run_id: str) -> str:
    """The first line of the error of the run's step, or of the run's own where no step failed."""
    kinds = {dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.RUN_FAILURE}
    said = ""
    for entry in instance.all_logs(run_id, of_type=kinds):
        event = entry.dagster_event
        if event is None:
            continue
        if event.event_type == dg.DagsterEventType.STEP_FAILURE:
            data = event.step_failure_data
            if data.user_failure_data is not None and data.user_failure_data.description:
                said = data.user_failure_data.description
            elif data.error is not None:
                said = (data.error.cause or data.error).message
            break
        said = event.message or said
    line = next((line.strip() for line in said.splitlines() if line.strip()), "no error is on record")
    return line[:_LONGEST_WORDS]


def _partitions(run: dg.DagsterRun) -> frozenset[str]:
    """The partitions that a run is for, which are months; none where its work has none."""
    first, last = (run.tags.get(tag) for tag in PARTITION_RANGE)
    if first and last:
        return frozenset(map(str, months_between(Month.parse(first), Month.parse(last))))
    return frozenset({run.tags[PARTITION]} if PARTITION in run.tags else ())


def _works(run: dg.DagsterRun) -> set[str]:
    """The asset that a run materializes, no matter who launched it, or what else it does."""
    if run.job_name == _OF_THE_UI:
        return {key.to_user_string() for key in run.asset_selection or ()}
    return {_ASSETS.get(run.job_name, work_of(run))}
