"""What Dagster's Helm chart makes of our values, as far as it concerns the instance and the context of runs.

Written after the chart's templates as they are in Dagster's repository; the chart itself is not to be had here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

MANIFESTS = Path(__file__).parents[2] / "deploy" / "kubernetes"


def values() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((MANIFESTS / "values.yaml").read_text("utf-8"))
    return loaded


def rendered_instance(given: dict[str, Any]) -> dict[str, Any]:
    """The `dagster.yaml` that the chart writes."""
    daemon, runs, pools = given["dagsterDaemon"], given["concurrency"]["runs"], given["concurrency"]["pools"]
    monitoring, retries = daemon["runMonitoring"], daemon["runRetries"]
    storage = {"config": {"postgres_db": _postgres(given)}}
    return {
        "scheduler": given["scheduler"]["config"]["customScheduler"],
        "schedule_storage": {
            "module": "dagster_postgres.schedule_storage", "class": "PostgresScheduleStorage", **storage,
        },
        "run_storage": {"module": "dagster_postgres.run_storage", "class": "PostgresRunStorage", **storage},
        "event_log_storage": {"module": "dagster_postgres.event_log", "class": "PostgresEventLogStorage", **storage},
        "run_launcher": given["runLauncher"]["config"]["customRunLauncher"],
        "run_coordinator": {
            "module": "dagster.core.run_coordinator",
            "class": "QueuedRunCoordinator",
            "config": _snake(daemon["runCoordinator"]["config"]["queuedRunCoordinator"]),
        },
        "compute_logs": {
            "module": "dagster.core.storage.noop_compute_log_manager", "class": given["computeLogManager"]["type"],
        },
        "concurrency": {
            "pools": {"default_limit": pools["defaultLimit"], "granularity": pools["granularity"]},
            "runs": {
                "max_concurrent_runs": runs["maxConcurrentRuns"],
                "tag_concurrency_limits": runs["tagConcurrencyLimits"],
            },
        },
        "run_monitoring": _snake(monitoring),
        "run_retries": _snake(retries),
        **{kind: _snake(daemon[kind]) for kind in ("schedules", "sensors", "backfills")},
        "retention": {
            kind: {"purge_after_days": given["retention"][kind]["purgeAfterDays"]} for kind in ("schedule", "sensor")
        },
        "telemetry": {"enabled": given["telemetry"]["enabled"]},
        **given["additionalInstanceConfig"],
    }  # fmt: skip


def container_context(given: dict[str, Any]) -> dict[str, Any]:
    """What the code server says that the pods of its runs shall have."""
    deployment = given["dagster-user-deployments"]["deployments"][0]
    assert deployment["includeConfigInLaunchedRuns"]["enabled"]
    return {
        "k8s": {
            "image_pull_policy": deployment["image"]["pullPolicy"],
            "env_secrets": [secret["name"] for secret in deployment["envSecrets"]],
            "env_vars": [f"{one['name']}={one['value']}" for one in deployment["env"]],
            "volumes": deployment["volumes"],
            "volume_mounts": deployment["volumeMounts"],
            "resources": deployment["resources"],
            "security_context": deployment["securityContext"],
            "namespace": "ticketflow",
            "run_k8s_config": {"pod_spec_config": {"security_context": deployment["podSecurityContext"]}},
        }
    }


def image(given: dict[str, Any]) -> str:
    named = given["dagster-user-deployments"]["deployments"][0]["image"]
    return f"{named['repository']}:{named['tag']}"


def _postgres(given: dict[str, Any]) -> dict[str, Any]:
    named = given["postgresql"]
    return {
        "username": named["postgresqlUsername"],
        "password": {"env": "DAGSTER_PG_PASSWORD"},
        "hostname": named["postgresqlHost"],
        "db_name": named["postgresqlDatabase"],
        "port": named["service"]["port"],
        "params": named["postgresqlParams"],
        "scheme": named["postgresqlScheme"],
    }


def _snake(named: dict[str, Any]) -> dict[str, Any]:
    return {"".join(f"_{c.lower()}" if c.isupper() else c for c in name): value for name, value in named.items()}
