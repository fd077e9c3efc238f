"""What Dagster would keep for ever, deleted: runs that have ended, events that no run owns, logs of evaluations.

Ticks are Dagster's own to delete, see `retention` in dagster.yaml.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
from sqlalchemy import Connection, Select, delete, func, select

from ticketflow_orch.dagster_host.dagster_internals import (
    AssetCheckExecutionsTable,
    AssetEventTagsTable,
    LocalComputeLogManager,
    SqlEventLogStorage,
    SqlEventLogStorageTable,
)

ENDED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]
_RUNS_AT_ONCE = 100
_EVENTS_AT_ONCE = 5000
_NO_RUN = ""
# What sensors report by themselves. What somebody reported of a month, in the UI, is how it counts as materialized.
_REPORTED = ("ASSET_OBSERVATION", "ASSET_CHECK_EVALUATION", "ASSET_MATERIALIZATION")


def delete_ended_runs(instance: dg.DagsterInstance, jobs: Sequence[str], before: datetime) -> int:
    """Delete the runs of `jobs` that have ended and were created before; how many.

    With their events, logs and checks, but for the last of each check: how it is found stays until it is judged again.
    """
    deleted = 0
    for job in jobs:
        ended = dg.RunsFilter(job_name=job, statuses=ENDED, created_before=before)
        while runs := instance.get_runs(ended, limit=_RUNS_AT_ONCE, ascending=True):
            for run in runs:
                instance.compute_log_manager.delete_logs(prefix=[run.run_id])
                instance.delete_run(run.run_id)
            _delete_checks_of(instance, [run.run_id for run in runs])
            deleted += len(runs)
    return deleted


def delete_reports(instance: dg.DagsterInstance, before: datetime) -> int:
    """Delete what sensors reported before, but for the last of each asset and check; how many rows.

    Dagster has no retention for events without a run: an observation and a check every five minutes are half a
    gigabyte a year.
    """
    storage = instance.event_log_storage
    if not isinstance(storage, SqlEventLogStorage):
        return 0
    # As Dagster keeps instants: in UTC, without saying so.
    moment = before.astimezone(UTC).replace(tzinfo=None)
    deleted = 0
    with storage.index_connection() as connection:
        latest = _latest(connection)
        while ids := list(connection.execute(_old_events(moment, latest)).scalars()):
            connection.execute(delete(AssetEventTagsTable).where(AssetEventTagsTable.c.event_id.in_(ids)))
            connection.execute(delete(SqlEventLogStorageTable).where(SqlEventLogStorageTable.c.id.in_(ids)))
            deleted += len(ids)
        while ids := list(connection.execute(_old_checks(moment)).scalars()):
            connection.execute(delete(AssetCheckExecutionsTable).where(AssetCheckExecutionsTable.c.id.in_(ids)))
            deleted += len(ids)
    return deleted


def delete_evaluation_logs(instance: dg.DagsterInstance, names: Sequence[str], before: datetime) -> int:
    """Delete the files that the evaluations of the schedules and sensors in `names` logged to before; how many.

    Only where logs are files of this host.
    """
    manager = instance.compute_log_manager
    if not isinstance(manager, LocalComputeLogManager):
        return 0
    deleted = 0
    for file in _evaluation_logs(manager, names):
        if file.stat().st_mtime < before.timestamp():
            file.unlink(missing_ok=True)
            deleted += 1
    return deleted


def _delete_checks_of(instance: dg.DagsterInstance, run_ids: Sequence[str]) -> None:
    """Delete what checks found in these runs, which Dagster leaves behind."""
    storage = instance.event_log_storage
    if isinstance(storage, SqlEventLogStorage):
        checks = AssetCheckExecutionsTable.c
        found = checks.run_id.in_(run_ids) & checks.id.not_in(_last_checks())
        with storage.index_connection() as connection:
            connection.execute(delete(AssetCheckExecutionsTable).where(found))


def _evaluation_logs(manager: LocalComputeLogManager, names: Sequence[str]) -> Iterator[Path]:
    """Each evaluation's own: below the repository, which is a folder of every name, and its schedule or sensor."""
    base = Path(manager.get_captured_local_path(["any"], "err")).parent
    if base.is_dir():
        for name in names:
            for folder in base.glob(f"*/{name}"):
                yield from (file for file in folder.iterdir() if file.is_file())


def _latest(connection: Connection) -> list[int]:
    """The last report of each asset and kind. Checks share one kind, and have rows of their own that say which."""
    events = SqlEventLogStorageTable.c
    of_assets = select(func.max(events.id)).where(events.run_id == _NO_RUN, events.partition.is_(None))
    grouped = of_assets.group_by(events.asset_key, events.dagster_event_type)
    checks = AssetCheckExecutionsTable.c
    referred = select(checks.evaluation_event_storage_id).where(checks.id.in_(_last_checks()))
    return [one for query in (grouped, referred) for one in connection.execute(query).scalars() if one is not None]


def _old_events(before: datetime, latest: Sequence[int]) -> Select[tuple[int]]:
    events = SqlEventLogStorageTable.c
    return (
        select(events.id)
        .where(
            events.run_id == _NO_RUN,
            events.partition.is_(None),
            events.dagster_event_type.in_(_REPORTED),
            events.timestamp < before,
            events.id.not_in(latest),
        )
        .order_by(events.id)
        .limit(_EVENTS_AT_ONCE)
    )


def _last_checks() -> Select[tuple[int]]:
    """The last of each check and status: the last row may say no more than that a run was to judge it."""
    checks = AssetCheckExecutionsTable.c
    return select(func.max(checks.id)).group_by(checks.asset_key, checks.check_name, checks.execution_status)


def _old_checks(before: datetime) -> Select[tuple[int]]:
    checks = AssetCheckExecutionsTable.c
    return (
        select(checks.id)
        .where(
            checks.run_id == _NO_RUN,
            checks.evaluation_event_timestamp < before,
            checks.id.not_in(_last_checks()),
        )
        .limit(_EVENTS_AT_ONCE)
    )
