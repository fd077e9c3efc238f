"""From nothing to a Dagster instance: as often as anybody asks, at once if need be, with the settings we rely on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from dagster import DagsterInstance, OpDefinition
from dagster._core.instance.config import PoolGranularity
from dagster_postgres import PostgresEventLogStorage
from sqlalchemy.engine import URL

from tests.conftest import run_sql
from tests.support.homes import MIGRATING, dagster_storage, fresh_home, variables_for
from ticketflow_orch.dagster_host.instance import running, storage_is_current
from ticketflow_orch.dagster_host.run_launcher import ProcessRunLauncher
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.definitions import build_definitions
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.jobs.intervals import POOLS
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.settings import read_settings

BOOTSTRAP = """
from ticketflow_orch.dagster_host.instance import Preparing, running
from ticketflow_orch.settings import settings
with running(settings(), asked=Preparing(own_server=True)) as instance:
    print(instance.migrated)
"""


@pytest.fixture
def storage(server: EmbeddedServer, url: URL) -> Iterator[URL]:
    """The URL of a database for Dagster's storage that does not exist yet."""
    with dagster_storage(server, url) as storage:
        yield storage


@pytest.fixture
def home(scratch: Path, url: URL, storage: URL) -> Iterator[Path]:
    """An empty home on an external server."""
    with fresh_home(scratch, **variables_for(url, storage)) as home:
        yield home


@pytest.fixture
def instance(home: Path) -> Iterator[DagsterInstance]:
    """A bootstrapped instance, opened as any Dagster process opens it."""
    with running(read_settings(), asked=MIGRATING), DagsterInstance.get() as instance:
        yield instance


def limits(instance: DagsterInstance) -> dict[str, tuple[int, bool]]:
    return {pool.name: (pool.limit, pool.from_default) for pool in instance.event_log_storage.get_pool_limits()}


def test_nothing_at_all_becomes_an_instance_and_the_repeat_changes_nothing(scratch: Path) -> None:
    with fresh_home(scratch) as home:
        with running(read_settings()) as first:
            assert first.migrated
            with DagsterInstance.get() as instance:
                assert storage_is_current(instance)
            written = (home / "dagster" / "dagster.yaml").stat()
            with running(read_settings()) as second:
                assert not second.migrated
            assert (home / "dagster" / "dagster.yaml").stat() == written
        assert EmbeddedServer(home).pid() is None


def test_two_bootstraps_at_once_both_succeed(server: EmbeddedServer, scratch: Path, storage: URL) -> None:
    unmigrated = server.url(f"{storage.database}_ours")
    command = [sys.executable, "-c", BOOTSTRAP]
    with fresh_home(scratch, **variables_for(unmigrated, storage)), ThreadPoolExecutor(2) as threads:
        ended = list(
            threads.map(
                lambda _: subprocess.run(command, check=False, capture_output=True, text=True, timeout=60), range(2)
            )
        )
    run_sql(server.url(), f"DROP DATABASE IF EXISTS {unmigrated.database} WITH (FORCE)")

    assert sorted(process.stdout for process in ended) == ["False\n", "True\n"], ended


def test_every_pool_that_the_code_location_names_is_limited_to_one_from_the_start(instance: DagsterInstance) -> None:
    jobs = build_definitions().resolve_all_job_defs()
    ops = [op for job in jobs for op in job.all_node_defs if isinstance(op, OpDefinition)]
    named = {pool for op in ops for pool in op.pools}

    assert named == set(POOLS)
    assert limits(instance) == dict.fromkeys(POOLS, (1, False))


def test_a_limit_that_an_operator_set_stays(instance: DagsterInstance) -> None:
    instance.event_log_storage.set_concurrency_slots("settlement", 0)

    with running(read_settings(), ["settlement", "another"], asked=MIGRATING):
        assert limits(instance) == dict.fromkeys(POOLS, (1, False)) | {"settlement": (0, False), "another": (1, False)}


def test_a_limit_by_default_is_made_one_of_its_own(instance: DagsterInstance) -> None:
    instance.event_log_storage.initialize_concurrency_limit_to_default("another")
    assert limits(instance)["another"] == (1, True)

    with running(read_settings(), ["another"], asked=MIGRATING):
        assert limits(instance)["another"] == (1, False)


def test_an_older_dagster_yaml_is_replaced(home: Path) -> None:
    (home / "dagster").mkdir(parents=True)
    file = home / "dagster" / "dagster.yaml"
    file.write_text("telemetry: {enabled: true}\n")

    with running(read_settings(), asked=MIGRATING):
        assert "TICKETFLOW_DAGSTER_DATABASE_URL" in file.read_text()
    assert [path.name for path in file.parent.iterdir() if path.name.startswith("dagster.yaml")] == ["dagster.yaml"]


def test_the_instance_has_the_settings_that_the_project_relies_on(instance: DagsterInstance, home: Path) -> None:
    concurrency = instance.get_concurrency_config()
    assert concurrency.pool_config.pool_granularity == PoolGranularity.RUN
    assert concurrency.pool_config.default_pool_limit == 1
    queue = concurrency.run_queue_config
    assert queue is not None
    assert queue.tag_concurrency_limits == [
        {"key": "dagster/partition", "value": {"applyLimitPerUniqueValue": True}, "limit": 1},
        {"key": "dagster/backfill", "limit": 2},
    ]
    assert queue.max_concurrent_runs > 2, "backfills would leave no room for the minute jobs"
    assert instance.run_coordinator.dequeue_interval_seconds == 1  # type: ignore[attr-defined]
    assert instance.run_monitoring_enabled
    assert instance.run_monitoring_poll_interval_seconds == 30
    assert instance.run_monitoring_start_timeout_seconds == 60
    assert instance.run_monitoring_max_runtime_seconds == 6 * 3600
    assert isinstance(instance.run_launcher, ProcessRunLauncher)
    assert os.environ["DAGSTER_BACKFILL_RETRY_DEFINITION_CHANGED_ERROR"], "a backfill waits for a code server"
    assert (instance.run_retries_enabled, instance.run_retries_max_retries) == (True, 2)
    assert not instance.run_retries_retry_on_asset_or_op_failure
    assert instance.scheduler is not None
    assert instance.scheduler.max_tick_retries >= 60, "a cut connection at its tick would cost a daily job its day"  # type: ignore[attr-defined]
    for kind in ("schedule", "sensor"):
        assert set(instance.get_settings("retention")[kind]["purge_after_days"]) == {
            "skipped", "success", "failure", "started"
        }  # fmt: skip
    assert instance.get_scheduler_settings()["use_threads"]
    assert instance.get_sensor_settings()["use_threads"]
    assert not instance.telemetry_enabled
    assert not instance.nux_enabled
    assert Path(instance.root_directory) == home / "dagster"
    assert isinstance(instance.event_log_storage, PostgresEventLogStorage)


def test_a_storage_that_is_behind_is_upgraded(instance: DagsterInstance, storage: URL) -> None:
    run_sql(storage, "UPDATE alembic_version SET version_num = '16e3655b4d9b'")
    run_sql(storage, "ALTER TABLE concurrency_limits DROP COLUMN using_default_limit")

    with running(read_settings(), asked=MIGRATING):
        assert storage_is_current(instance)
        assert limits(instance) == dict.fromkeys(POOLS, (1, False))


def test_a_storage_that_is_ahead_is_refused(instance: DagsterInstance, storage: URL) -> None:
    run_sql(storage, "UPDATE alembic_version SET version_num = 'of next year'")

    with (
        pytest.raises(TicketflowError, match="Dagster's storage is ahead of the installed Dagster"),
        running(read_settings(), asked=MIGRATING),
    ):
        pass


def test_a_bootstrap_that_hangs_is_named_instead_of_waited_for(
    home: Path, instance: DagsterInstance, storage: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ticketflow_orch.dagster_host.instance._LONGEST_WAIT", 0.2)
    engine = connect_engine(storage, "frozen bootstrap")
    with engine.begin() as connection:
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(6240173)")
        with (
            pytest.raises(TicketflowError, match="Another bootstrap has worked on this database"),
            running(read_settings(), asked=MIGRATING),
        ):
            pass
    engine.dispose()


def test_the_environment_is_all_that_a_plain_dagster_command_needs(home: Path) -> None:
    with running(read_settings(), asked=MIGRATING) as ready:
        bare = {name: value for name, value in os.environ.items() if not name.startswith(("TICKETFLOW_", "DAGSTER_"))}
        command = [sys.executable, "-m", "dagster", "instance", "info"]
        info = subprocess.run(
            command, env=bare | dict(ready.environment), cwd="/", capture_output=True, text=True, timeout=60, check=True
        )

    assert str(home / "dagster") in info.stdout
    assert "granularity: run" in info.stdout
