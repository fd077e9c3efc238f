"""Runs as Jobs of Kubernetes: Dagster's own launcher, which says when it cannot tell whether a run's Job lives.

Needs the extra `kubernetes`, in the images of daemon and webserver too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_k8s import K8sRunLauncher
from dagster_k8s.job import get_job_name_from_run_id

from ticketflow_orch.dagster_host.dagster_internals import CheckRunHealthResult, WorkerStatus

if TYPE_CHECKING:
    from dagster import DagsterRun


class KubernetesSilentError(Exception):
    """The API of Kubernetes does not say whether a run's Job lives."""


class KubernetesRunLauncher(K8sRunLauncher):
    """Dagster's, but for what it says of a run whose Job it cannot ask for.

    Dagster's calls that UNKNOWN, and run monitoring takes UNKNOWN for dead: one look while the API is away would fail
    every run that is healthy.
    """

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        """Whether the Job of a run that has started lives.

        Raises:
            KubernetesSilentError: the API does not answer, or refuses to.
        """
        found: CheckRunHealthResult = super().check_run_worker_health(run)
        if found.status != WorkerStatus.UNKNOWN:
            return found
        attempt = self._get_resume_attempt_number(run)
        name = get_job_name_from_run_id(run.run_id, resume_attempt_number=attempt)  # type: ignore[no-untyped-call]
        namespace = self.get_container_context_for_run(run).namespace
        try:
            status = self._api_client.get_job_status(namespace=namespace, job_name=name)
        except Exception as error:
            raise KubernetesSilentError(
                f"Whether Job {name} in namespace {namespace} lives cannot be said: {error}"
            ) from error
        if status is None:
            return CheckRunHealthResult(WorkerStatus.NOT_FOUND, f"Job {name} in namespace {namespace} is gone")
        raise KubernetesSilentError(f"Job {name} in namespace {namespace} was out of sight a moment ago.")
