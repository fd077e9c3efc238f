"""The instance that the chart makes of our values is the one of plain hosts, but for differences that have a reason."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml
from dagster._core.instance.config import dagster_instance_config
from dagster._core.scheduler import DagsterDaemonScheduler
from dagster._serdes import ConfigurableClassData
from dagster_k8s.job import UserDefinedDagsterK8sConfig

from tests.support.helm_chart import rendered_instance, values
from ticketflow_orch.dagster_host.helm_chart import chart_faults, is_made_by_chart
from ticketflow_orch.definitions import defs
from ticketflow_orch.jobs.pods import KUBERNETES_TAG, SETTLING_POD, SMALL_POD

# Each key of dagster.yaml that the chart writes otherwise, and why.
DIFFERENCES = {
    "storage": "the chart writes the three storages of Dagster's own class; ours cannot be named in it",
    "schedule_storage": "see storage",
    "run_storage": "see storage",
    "event_log_storage": "see storage",
    "run_launcher": "runs are Jobs",
    "run_queue": "the chart names the coordinator of runs outright, with the same interval",
    "run_coordinator": "see run_queue",
    "compute_logs": "a pod's files are gone with it, and its logs are the cluster's",
    "run_monitoring.start_timeout_seconds": "a pod waits for a node and an image",
    "run_monitoring.cancel_timeout_seconds": "a pod is given its grace to end in order",
}


def flat(written: dict[str, Any], above: str = "") -> dict[str, Any]:
    found = {}
    for name, value in written.items():
        key = f"{above}{name}"
        if isinstance(value, dict) and value and key not in DIFFERENCES:
            found |= flat(value, f"{key}.")
        else:
            found[key] = value
    return found


def test_every_key_is_that_of_plain_hosts_or_differs_for_a_reason() -> None:
    text = resources.files("ticketflow_orch.dagster_host").joinpath("dagster.yaml").read_text("utf-8")
    ours, charts = flat(yaml.safe_load(text)), flat(rendered_instance(values()))
    differing = {key for key in {*ours, *charts} if ours.get(key) != charts.get(key)}
    assert differing == set(DIFFERENCES)


def test_the_queue_rests_as_long_as_on_plain_hosts() -> None:
    text = resources.files("ticketflow_orch.dagster_host").joinpath("dagster.yaml").read_text("utf-8")
    assert rendered_instance(values())["run_coordinator"]["config"] == yaml.safe_load(text)["run_queue"]


def test_dagster_takes_the_instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_PG_PASSWORD", "any")
    (tmp_path / "dagster.yaml").write_text(yaml.safe_dump(rendered_instance(values())), "utf-8")
    config, _ = dagster_instance_config(str(tmp_path))
    assert config["run_monitoring"]["max_runtime_seconds"] == 21600
    written = config["scheduler"]
    data = ConfigurableClassData(written["module"], written["class"], yaml.safe_dump(written["config"]))
    scheduler = data.rehydrate(as_type=DagsterDaemonScheduler)
    assert scheduler.max_tick_retries == 120


def test_the_instance_of_the_chart_is_known_and_right(tmp_path: Path) -> None:
    (tmp_path / "dagster.yaml").write_text(yaml.safe_dump(rendered_instance(values())), "utf-8")
    assert is_made_by_chart(tmp_path)
    assert chart_faults(tmp_path) == []


@pytest.mark.parametrize(
    ("key", "wrong", "says"),
    [
        ("run_monitoring", {"enabled": False, "max_resume_run_attempts": 0}, "run_monitoring.enabled is False"),
        ("run_monitoring", {"enabled": True, "max_resume_run_attempts": 3}, "max_resume_run_attempts is 3"),
        ("run_retries", {"enabled": True}, "retry_on_asset_or_op_failure is None and must be False"),
        ("concurrency", {"pools": {"granularity": "op"}}, "granularity is 'op' and must be 'run'"),
        ("run_launcher", {"module": "dagster_k8s", "class": "K8sRunLauncher"}, "must be 'KubernetesRunLauncher'"),
    ],
)
def test_what_runs_could_be_lost_by_is_named(tmp_path: Path, key: str, wrong: dict[str, Any], says: str) -> None:
    written = rendered_instance(values()) | {key: wrong}
    (tmp_path / "dagster.yaml").write_text(yaml.safe_dump(written), "utf-8")
    assert is_made_by_chart(tmp_path)
    [fault] = chart_faults(tmp_path)
    assert says in fault
    assert "in the chart's values" in fault


def test_an_instance_of_a_plain_host_is_not_one_of_the_chart(tmp_path: Path) -> None:
    assert not is_made_by_chart(tmp_path)
    text = resources.files("ticketflow_orch.dagster_host").joinpath("dagster.yaml").read_text("utf-8")
    (tmp_path / "dagster.yaml").write_text(text, "utf-8")
    assert not is_made_by_chart(tmp_path)


@pytest.mark.parametrize("tags", [SMALL_POD, SETTLING_POD])
def test_what_jobs_ask_for_their_pods_is_what_dagster_takes(tags: dict[str, Any]) -> None:
    asked = UserDefinedDagsterK8sConfig.from_dict(tags[KUBERNETES_TAG])
    assert asked.container_config["resources"]["limits"]["memory"]


def test_every_scheduled_job_says_what_its_pod_needs() -> None:
    saying = {
        name
        for name in ("monthly_settlement_job", "close_events_job", "expire_reservations_job", "housekeeping_job")
        if KUBERNETES_TAG in defs.resolve_job_def(name).tags
    }
    assert len(saying) == 4
