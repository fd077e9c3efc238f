"""The `dagster.yaml` that Dagster's Helm chart writes in place of ours: what of it correctness needs.

Everything else of it is an operator's to decide; `deploy/kubernetes/values.yaml` has what we advise.
"""

from __future__ import annotations

from pathlib import Path

import yaml

_LAUNCHERS = {"KubernetesRunLauncher", "K8sRunLauncher"}
# Where in dagster.yaml, what stands there, and the value of the chart that it comes from.
_NEEDED = (
    ("run_launcher.class", "KubernetesRunLauncher", "runLauncher"),
    ("concurrency.pools.granularity", "run", "concurrency.pools.granularity"),
    ("run_monitoring.enabled", True, "dagsterDaemon.runMonitoring.enabled"),
    ("run_monitoring.max_resume_run_attempts", 0, "dagsterDaemon.runMonitoring.maxResumeRunAttempts"),
    ("run_retries.retry_on_asset_or_op_failure", False, "dagsterDaemon.runRetries.retryOnAssetOrOpFailure"),
)


def is_made_by_chart(home: Path) -> bool:
    """Whether the instance in `home` executes runs as Jobs of Kubernetes, so that its `dagster.yaml` is not ours."""
    return _at(_read(home), "run_launcher.class") in _LAUNCHERS


def chart_faults(home: Path) -> list[str]:
    """A sentence about each key of the `dagster.yaml` in `home` that runs could be lost or repeated by."""
    written = _read(home)
    return [
        f"{key} is {_at(written, key)!r} and must be {needed!r}; set {value} in the chart's values and upgrade it"
        for key, needed, value in _NEEDED
        if _at(written, key) != needed
    ]


def _read(home: Path) -> object:
    try:
        return yaml.safe_load((home / "dagster.yaml").read_text("utf-8"))
    except (OSError, yaml.YAMLError):
        return None


def _at(written: object, key: str) -> object:
    for name in key.split("."):
        written = written.get(name) if isinstance(written, dict) else None
    return written
