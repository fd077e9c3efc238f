"""Two years of schedules by the minute: what they leave stays bounded, and the pages of the UI as quick as at first.

DAYS=730 simulates the two years in some minutes; `-s` prints the figures that docs/operators.md has.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.scheduler.instigation import InstigatorState, InstigatorType, TickStatus
from sqlalchemy import Engine, text
from sqlalchemy.engine import URL

from schedules import SCHEDULES
from schedules.dagster_records import delete_reports
from schedules.housekeeping import MINUTE_OPS
from tests.support.automation import seen
from tests.support.homes import bootstrapped, dagster_storage
from tests.support.sql_statements import execute
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.monitoring.retention import STEPS, RetentionRules
from ticketflow_orch.settings import settings

DAYS = int(os.environ.get("DAYS", "60"))
STEP = 7
NOW = datetime.now(UTC)
MINUTES = 24 * 60
# One that comes by the minute, and one by the day.
BY_THE_MINUTE, BY_THE_DAY = "expire_reservations_schedule", "close_events_schedule"
# A check and an observation every five minutes.
REPORTS = 2 * MINUTES // 5


@pytest.fixture
def storage(server: EmbeddedServer, url: URL) -> Iterator[URL]:
    with dagster_storage(server, url) as storage:
        yield storage


@pytest.fixture
def instance(scratch: Path, url: URL, storage: URL) -> Iterator[dg.DagsterInstance]:
    with bootstrapped(scratch, url, storage) as instance:
        yield instance


def live(storage: Engine, first: int, last: int) -> None:
    """Copy the ticks and reports that are there to each minute, day and five minutes of these days before now."""
    for name, distance in ((BY_THE_MINUTE, "1 minute"), (BY_THE_DAY, "1 day")):
        execute(
            storage,
            """
            INSERT INTO job_ticks (job_origin_id, selector_id, status, type, timestamp, tick_body)
            SELECT job_origin_id, selector_id, status, type, at, tick_body
            FROM (SELECT * FROM job_ticks WHERE tick_body LIKE '%' || :name || '%' ORDER BY id LIMIT 1) AS tick,
                generate_series(now() AT TIME ZONE 'UTC' - make_interval(days => :first),
                    now() AT TIME ZONE 'UTC' - make_interval(days => :last), CAST(:distance AS interval)) AS at
            """,
            name=name, first=first, last=last, distance=distance,
        )  # fmt: skip
    span = {"first": first, "last": last}
    every = """
        generate_series(now() AT TIME ZONE 'UTC' - make_interval(days => :first),
            now() AT TIME ZONE 'UTC' - make_interval(days => :last), interval '5 minutes') AS at
    """
    execute(
        storage,
        f"""
        WITH evaluated AS (
            INSERT INTO event_logs (run_id, event, dagster_event_type, timestamp, asset_key)
            SELECT run_id, event, dagster_event_type, at, asset_key
            FROM (SELECT DISTINCT ON (dagster_event_type) * FROM event_logs WHERE run_id = '') AS event, {every}
            RETURNING id, dagster_event_type, timestamp
        )
        INSERT INTO asset_check_executions (asset_key, check_name, run_id, execution_status, evaluation_event,
            evaluation_event_timestamp, evaluation_event_storage_id)
        SELECT asset_key, check_name, run_id, execution_status, evaluation_event, evaluated.timestamp, evaluated.id
        FROM (SELECT * FROM asset_check_executions ORDER BY id LIMIT 1) AS checked, evaluated
        WHERE evaluated.dagster_event_type = 'ASSET_CHECK_EVALUATION'
        """,
        **span,
    )


def keep_house(instance: dg.DagsterInstance, days_ago: int) -> None:
    """What the daemon deletes at each tick, and the housekeeping each day, when it was so many days ago."""
    now = NOW - timedelta(days=days_ago)
    kept = instance.get_tick_retention_settings(InstigatorType.SCHEDULE)
    for state in states(instance):
        for status, days in kept.items():
            instance.purge_ticks(
                state.instigator_origin_id, state.selector_id, (now - timedelta(days=days)).timestamp(), [status]
            )
    delete_reports(instance, now - settings().runs_kept)


def states(instance: dg.DagsterInstance) -> list[InstigatorState]:
    return list(instance.all_instigator_state())


def pages(instance: dg.DagsterInstance) -> dict[str, Callable[[], object]]:
    """The queries behind the pages Automation, a schedule's own, Runs, and an asset's."""
    schedules = instance.schedule_storage
    assert schedules is not None
    ids = [state.selector_id for state in states(instance)]
    one = states(instance)[0]
    key = dg.AssetKey("outbox")
    return {
        "Automation": lambda: schedules.get_batch_ticks(ids, limit=1),
        "a schedule's ticks": lambda: schedules.get_ticks(one.instigator_origin_id, one.selector_id, limit=25),
        "its failures": lambda: schedules.get_ticks(
            one.instigator_origin_id, one.selector_id, limit=25, statuses=[TickStatus.FAILURE]
        ),
        "Runs": lambda: instance.get_run_records(limit=25),
        "an asset": lambda: instance.fetch_observations(key, limit=25),
        "its check": lambda: instance.event_log_storage.get_asset_check_execution_history(
            dg.AssetCheckKey(key, "is_delivered"), limit=25
        ),
    }


def timed(instance: dg.DagsterInstance) -> dict[str, float]:
    """Milliseconds of each page's query: the median of five."""
    found = {}
    for page, query in pages(instance).items():
        took = []
        for _ in range(5):
            began = time.perf_counter()
            query()
            took.append(1000 * (time.perf_counter() - began))
        found[page] = statistics.median(took)
    return found


def sizes(storage: Engine) -> dict[str, tuple[int, int]]:
    """Rows and bytes of the tables that grow by the minute."""
    with storage.connect() as connection:
        return {
            table: tuple(connection.execute(
                text(f"SELECT count(*), pg_total_relation_size('{table}') FROM {table}")
            ).one())
            for table in ("job_ticks", "event_logs", "asset_check_executions")
        }  # fmt: skip


def tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def show(
    when: str, storage: Engine, instance: dg.DagsterInstance
) -> tuple[dict[str, tuple[int, int]], dict[str, float]]:
    execute(storage, "ANALYZE")
    size, took = sizes(storage), timed(instance)
    tell(f"\n{when}:")
    for table, (rows, held) in size.items():
        tell(f"  {table:<24} {rows:>10,} rows {held / 1e6:>8.1f} MB")
    tell("  " + ", ".join(f"{page} {milliseconds:.1f} ms" for page, milliseconds in took.items()))
    return size, took


def begin(instance: dg.DagsterInstance) -> None:
    for name in (BY_THE_MINUTE, BY_THE_DAY):
        assert name in {schedule.name for schedule in SCHEDULES}
        seen(instance, name, ago=timedelta(0))
    key = dg.AssetKey("outbox")
    instance.report_runless_asset_event(dg.AssetObservation(key))
    instance.report_runless_asset_event(dg.AssetCheckEvaluation(key, "is_delivered", passed=True, metadata={}))


@pytest.mark.parametrize("kept", [True, False], ids=["with housekeeping", "without"])
def test_what_dagster_keeps_of_minutes_is_bounded_and_its_pages_stay_quick(
    instance: dg.DagsterInstance, storage: URL, kept: bool
) -> None:
    if not kept and "DAYS" not in os.environ:
        pytest.skip("DAYS shows what would grow without it")
    engine = connect_engine(storage, "pytest two years", connections=2)
    begin(instance)
    live(engine, 1, 0)
    _, at_first = show("after a day", engine, instance)
    for day in range(DAYS, 0, -STEP):
        last = max(day - STEP, 0)
        live(engine, day, last)
        if kept:
            keep_house(instance, last)
            with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.execute(text("VACUUM"))
    size, at_last = show(f"after {DAYS} days {'with' if kept else 'without'} housekeeping", engine, instance)
    engine.dispose()
    if kept:
        runs_kept = settings().runs_kept.days
        assert size["job_ticks"][0] < 5 * MINUTES + 100
        assert size["event_logs"][0] < (runs_kept + 2) * REPORTS
        assert size["asset_check_executions"][0] < (runs_kept + 2) * REPORTS
        for page, milliseconds in at_last.items():
            assert milliseconds < 10 * at_first[page] + 50, page


def test_what_our_own_tables_keep_of_minutes_is_bounded(engine: Engine) -> None:
    span = {"days": DAYS + 100}
    execute(
        engine,
        """
        INSERT INTO job_execution (job, idempotency_key, state, owner, started_at, finished_at)
        SELECT 'expire_reservations', to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS+00:00'),
            CASE WHEN extract(minute FROM at) = 0 THEN 'FAILED' ELSE 'COMPLETED' END, 'nobody', at, at
        FROM generate_series(now() - make_interval(days => :days), now(), interval '5 minutes') AS at
        """,
        **span,
    )
    execute(
        engine,
        """
        INSERT INTO job_firing (job, scheduled_for, fired_at, host, pid, run_id, outcome)
        SELECT 'expire_reservations', at, at, 'here', 1, 'run', 'ACCEPTED'
        FROM generate_series(now() - make_interval(days => :days), now(), interval '5 minutes') AS at
        """,
        **span,
    )
    execute(
        engine,
        """
        INSERT INTO alert (kind, key, alerted_at)
        SELECT 'StaleClaim', CAST(at AS text), at
        FROM generate_series(now() - make_interval(days => :days), now(), interval '1 hour') AS at
        """,
        **span,
    )
    rules = RetentionRules(timedelta(days=90), MINUTE_OPS)
    deleted = {what: step(engine, rules) for what, step in STEPS.items()}
    assert all(deleted[what] for what in ("claims", "firings", "alerts"))
    with engine.connect() as connection:
        for table, most in (("job_execution", 91 * 288), ("job_firing", 91 * 288), ("alert", 91 * 24)):
            rows = connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()
            tell(f"{table}: {rows:,} rows")
            assert rows < most
