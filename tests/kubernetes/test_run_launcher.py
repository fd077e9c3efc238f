"""Runs as Jobs: what the launcher asks of Kubernetes is taken, settles a month when it is run, and is judged right."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from dagster import DagsterEventType, DagsterInstance, DagsterRun, DagsterRunStatus
from dagster._core.code_pointer import ModuleCodePointer
from dagster._core.launcher import LaunchRunContext, WorkerStatus
from dagster._core.origin import JobPythonOrigin, RepositoryPythonOrigin
from sqlalchemy import URL, Engine

from tests.support.helm_chart import container_context, image, rendered_instance, values
from tests.support.homes import bootstrapped, dagster_storage
from tests.support.kubernetes_api import Cluster, cluster
from tests.support.launched_runs import now, poll, report
from tests.support.rows import add_movement, add_organization
from tests.support.settled import ledger
from ticketflow_orch.dagster_host.kubernetes_launcher import KubernetesRunLauncher, KubernetesSilentError
from ticketflow_orch.definitions import defs
from ticketflow_orch.local.postgres import EmbeddedServer

VERSION = "1.30"
STARTED, FAILURE, SUCCESS = DagsterRunStatus.STARTED, DagsterRunStatus.FAILURE, DagsterRunStatus.SUCCESS


@pytest.fixture
def kubernetes(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path) as made:
        yield made


@pytest.fixture
def storage(scratch: Path, server: EmbeddedServer, url: URL) -> Iterator[URL]:
    """Both databases, prepared."""
    with dagster_storage(server, url) as storage, bootstrapped(scratch, url, storage):
        yield storage


@pytest.fixture
def instance(
    kubernetes: Cluster, storage: URL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DagsterInstance]:
    """The instance of our values. Its storage is by URL, since the server here has no port, and the API is the stub."""
    written = rendered_instance(values())
    for part in ("run_storage", "event_log_storage", "schedule_storage"):
        written[part]["config"] = {"postgres_url": {"env": "TICKETFLOW_DAGSTER_DATABASE_URL"}}
    written["run_launcher"]["config"] |= {
        "load_incluster_config": False,
        "kubeconfig_file": str(kubernetes.kubeconfig()),
    }
    home = tmp_path / "dagster"
    home.mkdir()
    (home / "dagster.yaml").write_text(yaml.safe_dump(written), "utf-8")
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    monkeypatch.setenv("DAGSTER_K8S_INSTANCE_CONFIG_MAP", "dagster-instance")
    monkeypatch.setenv("DAGSTER_K8S_PG_PASSWORD_SECRET", "ticketflow-dagster-storage")
    monkeypatch.setenv("DAGSTER_PG_PASSWORD", "none")
    with DagsterInstance.from_config(str(home)) as opened:
        yield opened


def launch(instance: DagsterInstance, job: str, **tags: str) -> DagsterRun:
    pointer = ModuleCodePointer("ticketflow_orch.definitions", "defs", None)
    origin = JobPythonOrigin(
        job,
        RepositoryPythonOrigin(
            sys.executable, pointer, container_image=image(values()), container_context=container_context(values())
        ),
    )
    definition = defs.resolve_job_def(job)
    run = instance.create_run_for_job(
        definition, tags={**definition.tags, **{f"dagster/{name}": value for name, value in tags.items()}},
        job_code_origin=origin,
    )  # fmt: skip
    report(instance, run, DagsterEventType.RUN_STARTING)
    instance.run_launcher.launch_run(LaunchRunContext(now(instance, run), None))
    return now(instance, run)


def secrets() -> dict[str, dict[str, str]]:
    names = ("TICKETFLOW_DATABASE_URL", "TICKETFLOW_DAGSTER_DATABASE_URL")
    return {
        "ticketflow-databases": {name: os.environ[name] for name in names},
        "ticketflow-dagster-storage": {"postgresql-password": "none"},
    }


def started(instance: DagsterInstance, kubernetes: Cluster) -> tuple[DagsterRun, str]:
    """A run whose Job is there and has begun; no process stands for it."""
    run = launch(instance, "housekeeping_job")
    report(instance, run, DagsterEventType.RUN_START)
    [name] = kubernetes.jobs
    return now(instance, run), name


def health(instance: DagsterInstance, run: DagsterRun) -> WorkerStatus:
    return instance.run_launcher.check_run_worker_health(run).status


def test_the_jobs_that_are_made_settle_a_month_when_they_are_run(
    instance: DagsterInstance, kubernetes: Cluster, engine: Engine, tmp_path: Path
) -> None:
    for amount in (10_000, 25_000):
        add_movement(engine, add_organization(engine), amount, "2026-03-10T12:00")
    for _ in range(2):
        run = launch(instance, "monthly_settlement_job", partition="2026-03")
        name = f"dagster-run-{run.run_id}"
        # What the Job calls /var/lib/ticketflow and where it finds its dagster.yaml are mounts there.
        process = kubernetes.start(
            name, secrets(), TICKETFLOW_HOME=str(tmp_path / "home"), DAGSTER_HOME=os.environ["DAGSTER_HOME"],
            TICKETFLOW_FIRST_MONTH=os.environ["TICKETFLOW_FIRST_MONTH"],
        )  # fmt: skip
        assert process.wait(120) == 0, kubernetes.printed(name)
        assert now(instance, run).status == SUCCESS
        assert health(instance, now(instance, run)) == WorkerStatus.SUCCESS
        # The second one finds nothing to post.
        assert ledger(engine, "organization_id", "currency", "net") == [(1, "EUR", 8_800), (2, "EUR", 22_000)]


def test_the_api_takes_the_job_and_the_job_s_own_tags_decide(instance: DagsterInstance, kubernetes: Cluster) -> None:
    for job, memory in (("monthly_settlement_job", "1Gi"), ("housekeeping_job", "512Mi")):
        run = launch(instance, job, **({"partition": "2026-03"} if "month" in job else {}))
        made = kubernetes.jobs[f"dagster-run-{run.run_id}"]
        kubernetes_validate.validate(made, VERSION, strict=True)
        spec = made["spec"]["template"]["spec"]
        [container] = spec["containers"]
        assert container["resources"]["limits"] == {"memory": memory}
        assert container["image"] == image(values())
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["serviceAccountName"] == "ticketflow-run"
        assert spec["automountServiceAccountToken"] is False
        assert made["spec"]["ttlSecondsAfterFinished"] == 86400
        assert made["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"] == "run_worker"
        assert secrets()["ticketflow-databases"]["TICKETFLOW_DATABASE_URL"] not in json.dumps(made)


def test_a_process_that_is_killed_is_a_failed_job_and_its_run_fails(
    instance: DagsterInstance, kubernetes: Cluster, tmp_path: Path
) -> None:
    run, name = started(instance, kubernetes)
    assert health(instance, run) == WorkerStatus.RUNNING
    assert poll(instance) == []
    assert now(instance, run).status == STARTED
    process = kubernetes.start(name, secrets())
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert health(instance, run) == WorkerStatus.FAILED
    poll(instance)
    assert now(instance, run).status == FAILURE


def test_a_job_that_is_gone_is_found_out(instance: DagsterInstance, kubernetes: Cluster) -> None:
    run, name = started(instance, kubernetes)
    del kubernetes.jobs[name]
    assert health(instance, run) == WorkerStatus.NOT_FOUND
    poll(instance)
    assert now(instance, run).status == FAILURE


def test_a_healthy_run_outlives_an_api_that_does_not_answer(instance: DagsterInstance, kubernetes: Cluster) -> None:
    run, _ = started(instance, kubernetes)
    kubernetes.answers = 403
    launcher = instance.run_launcher
    assert isinstance(launcher, KubernetesRunLauncher)
    with pytest.raises(KubernetesSilentError, match="cannot be said"):
        launcher.check_run_worker_health(run)
    # What Dagster's own says, which run monitoring takes for dead.
    assert super(KubernetesRunLauncher, launcher).check_run_worker_health(run).status == WorkerStatus.UNKNOWN
    poll(instance)
    assert now(instance, run).status == STARTED
    kubernetes.answers = None
    assert health(instance, run) == WorkerStatus.RUNNING


def test_who_is_terminated_has_no_job_any_more(instance: DagsterInstance, kubernetes: Cluster) -> None:
    run, name = started(instance, kubernetes)
    assert instance.run_launcher.terminate(run.run_id)
    assert kubernetes.deleted == [name]
    assert now(instance, run).status == DagsterRunStatus.CANCELING
    deadline = time.monotonic() + 10
    while name in kubernetes.jobs:
        assert time.monotonic() < deadline
