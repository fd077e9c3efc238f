"""Checks about money that are red: alerted at once, one alert a check, until a later judgement of it is green.

A run whose check fails succeeds all the same, and a red mark in the catalog calls nobody.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import dagster as dg

from assets import CHECKS
from resources import ClockResource, DatabaseResource, OutboxResource
from sensors.alerting import alert
from ticketflow_orch.dagster_host.dagster_internals import AssetCheckExecutionRecord, AssetCheckExecutionRecordStatus
from ticketflow_orch.db.engine import transaction
from ticketflow_orch.outbox.alerts import CAUSE_GONE, Alert, Severity, resolve, standing

KIND = "CheckFailed"
_KEYS = [key for check in CHECKS for key in check.check_keys]
_JUDGED = {AssetCheckExecutionRecordStatus.SUCCEEDED, AssetCheckExecutionRecordStatus.FAILED}
_LONGEST_WORDS = 500


@dataclass(frozen=True, slots=True)
class FailedCheck:
    """The last judgement of the check `key` was that something is wrong: at `at`, in the run `run_id`.

    `number` tells its judgements apart. `only_warns`: what it found may be right, and has lines of its own in health.
    """

    key: dg.AssetCheckKey
    number: int
    run_id: str
    at: datetime
    description: str
    only_warns: bool

    @property
    def subject(self) -> str:
        """What all of its failures have in common."""
        return _subject(self.key)

    @property
    def alert(self) -> Alert:
        """What operators learn of it, with its other failures."""
        said = {
            "asset": self.key.asset_key.to_user_string(), "check": self.key.name, "run_id": self.run_id,
            "description": self.description,
        }  # fmt: skip
        severity = Severity.INFO if self.only_warns else Severity.PAGE
        return Alert(KIND, f"{self.subject} {self.number}", said, subject=self.subject, severity=severity)


@dg.sensor(
    minimum_interval_seconds=60,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Alerts of checks about money that are red, one alert a check, and ends it when they are green.",
)
def failed_checks(
    context: dg.SensorEvaluationContext, database: DatabaseResource, clock: ClockResource, outbox: OutboxResource
) -> dg.SkipReason:
    """Starts no run: what it finds goes to the outbox."""
    now = clock.now()
    red = list(standing_red(context.instance))
    still = {one.subject for one in red}
    with database.engine("failed_checks") as engine, transaction(engine) as connection:
        outcome = alert(context, connection, [one.alert for one in red], now, outbox.append)
        over = [one.id for one in standing(connection, [KIND]) if one.subject not in still]
        resolve(connection, over, now, CAUSE_GONE, outbox.append)
    return outcome


def standing_red(instance: dg.DagsterInstance) -> Iterator[FailedCheck]:
    """The checks about money whose last judgement was that something is wrong."""
    for record in _last_judged(instance):
        judged = record.evaluation
        if record.status == AssetCheckExecutionRecordStatus.FAILED and judged is not None:
            yield FailedCheck(
                record.key, record.id, record.run_id, datetime.fromtimestamp(record.create_timestamp, UTC),
                (judged.description or "")[:_LONGEST_WORDS], judged.severity == dg.AssetCheckSeverity.WARN,
            )  # fmt: skip


def _last_judged(instance: dg.DagsterInstance) -> Iterator[AssetCheckExecutionRecord]:
    """The last judgement of each check. One that a run was to judge says nothing: the run may never come to it."""
    storage = instance.event_log_storage
    for key, record in storage.get_latest_asset_check_execution_by_key(_KEYS).items():
        if record.status == AssetCheckExecutionRecordStatus.PLANNED:
            yield from storage.get_asset_check_execution_history(key, limit=1, status=_JUDGED)
        else:
            yield record


def _subject(key: dg.AssetCheckKey) -> str:
    return f"{key.asset_key.to_user_string()} {key.name}"
