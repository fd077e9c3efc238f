"""Every name that Dagster keeps to itself and this project uses all the same: the one place that imports them.

A new version of Dagster may move or drop any of them. A test says so then, and here is what to correct. What Dagster
exports is imported from `dagster`, where it is used; the names of its tags that the business knows are in
`jobs.firings`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

# For a version that is shown without a run; `assets.months_board`.
from dagster._core.definitions.data_version import DATA_VERSION_TAG

# For resources without configuration, which the launchpad does not show; `resources.given`.
from dagster._core.definitions.resource_annotation import TreatAsResourceParam

# For a launcher of runs, whose interface Dagster documents and does not export; `run_launcher`.
from dagster._core.events import JobFailureData, RunFailureReason

# For opening an instance otherwise than its home says; `instance`.
from dagster._core.instance import InstanceRef

# For a launcher of runs, as above.
from dagster._core.launcher import CheckRunHealthResult, LaunchRunContext, RunLauncher, WorkerStatus
from dagster._core.origin import JobPythonOrigin, get_python_environment_entry_point

# For what schedules and sensors did lately; `cli.automation`.
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorTick,
    ScheduleInstigatorData,
    SensorInstigatorData,
    TickStatus,
)

# For the last judgement of a check; `sensors.failed_checks`.
from dagster._core.storage.asset_check_execution_record import (
    AssetCheckExecutionRecord,
    AssetCheckExecutionRecordStatus,
)

# For deleting what Dagster keeps for ever; `schedules.dagster_records`.
from dagster._core.storage.event_log import SqlEventLogStorage
from dagster._core.storage.event_log.schema import (
    AssetCheckExecutionsTable,
    AssetEventTagsTable,
    SqlEventLogStorageTable,
)
from dagster._core.storage.local_compute_log_manager import LocalComputeLogManager

# For a storage with pools of its own; `storage`.
from dagster._core.storage.sql import create_engine

# For who asked for a run, and whether another follows; `sensors.failed_runs`.
from dagster._core.storage.tags import AUTO_RETRY_RUN_ID_TAG, SCHEDULE_NAME_TAG, SENSOR_NAME_TAG, WILL_RETRY_TAG

# For a launcher of runs, as above.
from dagster._grpc.types import ExecuteRunArgs
from dagster._serdes import ConfigurableClass, ConfigurableClassData, serialize_value

# For the hours of a schedule; Dagster has its own copy of croniter. `sensors.missed_windows`.
from dagster._utils.schedules import schedule_execution_time_iterator

if TYPE_CHECKING:
    from types import ModuleType

    # Slow to import, and every run loads this module.
    from dagster._daemon.types import DaemonHeartbeat
    from dagster._grpc.client import DagsterGrpcClient

__all__ = [
    "AUTO_RETRY_RUN_ID_TAG",
    "DATA_VERSION_TAG",
    "NO_COMPUTE_LOGS",
    "SCHEDULE_NAME_TAG",
    "SENSOR_NAME_TAG",
    "WILL_RETRY_TAG",
    "AssetCheckExecutionRecord",
    "AssetCheckExecutionRecordStatus",
    "AssetCheckExecutionsTable",
    "AssetEventTagsTable",
    "CheckRunHealthResult",
    "ConfigurableClass",
    "ConfigurableClassData",
    "DaemonHeartbeat",
    "ExecuteRunArgs",
    "InstanceRef",
    "InstigatorState",
    "InstigatorTick",
    "JobFailureData",
    "JobPythonOrigin",
    "LaunchRunContext",
    "LocalComputeLogManager",
    "RunFailureReason",
    "RunLauncher",
    "ScheduleInstigatorData",
    "SensorInstigatorData",
    "SqlEventLogStorage",
    "SqlEventLogStorageTable",
    "TickStatus",
    "TreatAsResourceParam",
    "WorkerStatus",
    "code_server",
    "create_engine",
    "get_python_environment_entry_point",
    "schedule_execution_time_iterator",
    "serialize_value",
    "webserver_cli",
]

# How an instance is configured that captures nothing of what runs print.
NO_COMPUTE_LOGS = {"module": "dagster._core.storage.noop_compute_log_manager", "class": "NoOpComputeLogManager"}


def webserver_cli() -> ModuleType:
    """The module that assembles Dagster's webserver: its command, and the function that makes the application."""
    import dagster_webserver.cli  # noqa: PLC0415 - slow, and every run loads this module

    return dagster_webserver.cli


def code_server(socket: str) -> DagsterGrpcClient:
    """The code server that listens on `socket`."""
    from dagster._grpc.client import DagsterGrpcClient  # noqa: PLC0415 - slow, and every run loads this module

    return DagsterGrpcClient(socket=socket)
