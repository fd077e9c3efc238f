"""A run launcher for plain hosts: every run is executed by a process of its own, which can be found and judged.

It needs no code server, so that neither the end of one nor its restart touches a run, and a new version's code is in
the next run. Where a worker is asked about that cannot be seen from here, as one on another host, the answer is an
error: Dagster takes anything else that is not a yes for its death.
"""

from __future__ import annotations

import base64
import logging
import os
import signal
import subprocess
import threading
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, RunsFilter

from ticketflow_orch.dagster_host.dagster_internals import (
    CheckRunHealthResult,
    ConfigurableClass,
    ConfigurableClassData,
    ExecuteRunArgs,
    JobFailureData,
    JobPythonOrigin,
    LaunchRunContext,
    RunFailureReason,
    RunLauncher,
    WorkerStatus,
    get_python_environment_entry_point,
    serialize_value,
)
from ticketflow_orch.dagster_host.run_workers import (
    LOG_VARIABLE,
    WORKER_TAG,
    HasWorkerError,
    RunWorker,
    WorkerLogs,
    is_held,
)
from ticketflow_orch.jobs.firings import MAX_RUNTIME
from ticketflow_orch.local.process_identity import Life

# Seconds. What a worker gets to end in order, once it was asked to or its run has ended without it.
GRACE = 20.0
_BETWEEN_LOOKS = 2.0
# Set to the run's id where its worker shall be stopped by a daemon that reaches it. A retry inherits it.
_STOP_TAG = "ticketflow/stop"
_ENDED_BEFORE_IT_BEGAN = "The process that was started for this run ended before the run began."

_logger = logging.getLogger(__name__)


class LaunchError(Exception):
    """A run cannot be started; the message is for people."""


class WorkerOutOfSightError(Exception):
    """Whether a run's worker lives cannot be said from here."""


class ProcessRunLauncher(RunLauncher[DagsterInstance], ConfigurableClass):
    """Executes each run in a process of its own on the daemon's host: `dagster api execute_run`.

    The process leads a group of its own and writes to a file below the instance's home. Its environment is the
    daemon's. Who executes a run is in the run's tags, so that webserver and daemon, and those who come after them,
    find it again.
    """

    def __init__(self, inst_data: ConfigurableClassData | None = None) -> None:
        self._inst_data = inst_data
        self._children: list[subprocess.Popen[bytes]] = []
        self._ending = threading.Event()
        self._watcher: threading.Thread | None = None
        # When a worker was first seen to have no reason to live any more, by its run.
        self._overdue: dict[str, float] = {}
        # Whose workers were asked to end for somebody who does not reach them.
        self._asked: set[str] = set()
        self._lock = threading.Lock()
        super().__init__()  # type: ignore[no-untyped-call]

    @property
    def inst_data(self) -> ConfigurableClassData | None:
        """What the instance's configuration says."""
        return self._inst_data

    @classmethod
    def config_type(cls) -> dict[str, Any]:
        """It has no configuration."""
        return {}

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]) -> Self:
        """The launcher that the instance's configuration names."""
        del config_value
        return cls(inst_data)

    def launch_run(self, context: LaunchRunContext) -> None:
        """Start the process that executes a run; what two daemons took out of the queue is started once.

        Raises:
            LaunchError: its Python is not on this host.
        """
        run, origin = context.dagster_run, context.job_code_origin
        if origin is None:
            raise LaunchError(f"Run {run.run_id} does not say where its code is.")
        command = [*get_python_environment_entry_point(origin.executable_path), "api", "execute_run"]
        arguments = ExecuteRunArgs(origin, run.run_id, self._instance.get_ref(), set_exit_code_on_failure=True)
        log = self._logs.of(run.run_id)
        try:
            with self._logs.open_held(run.run_id) as held:
                child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=held,
                    stderr=subprocess.STDOUT,
                    # Not on the command line, which everybody on the host may read.
                    env={
                        **os.environ,
                        "DAGSTER_COMPRESSED_EXECUTE_RUN_ARGS": _compressed(arguments),
                        LOG_VARIABLE: str(log),
                    },
                    cwd=_folder(origin),
                    # The terminal's Ctrl-C is not meant for it. It stays in the daemon's session, by which those who
                    # end the daemon with all that it started find it.
                    process_group=0,
                )
        except HasWorkerError as living:
            self._instance.report_engine_event(str(living), run, cls=type(self))
            return
        except OSError as error:
            raise LaunchError(f"The process for run {run.run_id} cannot be started: {error}") from error
        with self._lock:
            self._children.append(child)
        self._start_watching()
        # The worker says the same when it begins: it need not be lost because of this.
        try:
            self._instance.add_run_tags(
                run.run_id, {WORKER_TAG: RunWorker.launched(run.run_id, child.pid, log).to_json()}
            )
        except Exception:
            _logger.exception("The worker of run %s, process %d, is not in its tags yet.", run.run_id, child.pid)

    def terminate(self, run_id: str) -> bool:
        """Tell a run's worker to stop, wherever this is asked; False where there is none to tell.

        It does not wait: a worker that does not stop is killed, and a run without one is ended, by the daemon.
        """
        run = self._instance.get_run_by_id(run_id) if self.has_instance else None
        if run is None or run.is_finished:
            return False
        worker = RunWorker.named(run_id, run.tags)
        if worker is not None and worker.log is None and worker.life != Life.GONE:
            self._instance.report_engine_event(
                f"Executed by {worker.process}, which no launcher started: end it there.", run, cls=type(self)
            )
            return False
        gone = self.life_of_worker(run) == Life.GONE
        if gone and not self.is_without_worker(run):
            return False
        if run.status != DagsterRunStatus.CANCELING:
            self._instance.report_run_canceling(run)
        if gone:
            self._instance.report_run_canceled(run, "Canceled; its worker was gone already.")
        elif worker is not None and not worker.process.signal(signal.SIGTERM):
            self._instance.add_run_tags(run_id, {_STOP_TAG: run_id})
            self._instance.report_engine_event(
                f"Its worker, {worker.process}, cannot be reached from here; the daemon there stops it.",
                run,
                cls=type(self),
            )
        return True

    @property
    def supports_check_run_worker_health(self) -> bool:
        """It can tell, so that run monitoring asks."""
        return True

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        """Whether the worker of a run that has started lives.

        Raises:
            WorkerOutOfSightError: that cannot be said from here.
        """
        self._start_watching()
        worker = RunWorker.named(run.run_id, run.tags)
        life = self.life_of_worker(run)
        if life == Life.GONE:
            which = f" ({worker.process})" if worker else ""
            return CheckRunHealthResult(WorkerStatus.FAILED, f"the process that executed it{which} is gone")
        if worker is None:
            return CheckRunHealthResult(WorkerStatus.RUNNING, "nobody has said who executes it")
        # What is raised keeps Dagster from looking at the longest time that the run may take. And a command of a
        # person on another host is nothing that anybody here could end.
        if life == Life.OUT_OF_SIGHT and worker.log is not None and not self._has_outlasted(run):
            raise WorkerOutOfSightError(
                f"{worker.process} executes run {run.run_id}, and whether it lives cannot be said from here."
            )
        return CheckRunHealthResult(WorkerStatus.RUNNING, str(worker.process))

    def get_run_worker_debug_info(self, run: DagsterRun, include_container_logs: bool | None = True) -> str | None:
        """What a run's worker wrote last, besides what is in the run's own logs."""
        del include_container_logs
        words = self._logs.last_words(run.run_id)
        return f"{self._logs.of(run.run_id)} ends with:\n{words}" if words else None

    def end_runs_without_worker(self) -> list[str]:
        """End, as crashed, the runs whose worker is known to be gone; returns their ids.

        For the start of a daemon: until then nobody looked. What cannot be told is left to run monitoring.
        """
        ended = []
        for run in self._instance.get_runs(RunsFilter(statuses=_IN_PROGRESS)):
            if self.is_without_worker(run):
                self._end(run, "The process that executed this run is gone.")
                ended.append(run.run_id)
        return ended

    def life_of_worker(self, run: DagsterRun) -> Life | None:
        """Whether a run's worker lives, as far as that can be said here; None where nobody has said who it is."""
        worker = RunWorker.named(run.run_id, run.tags)
        if worker is not None:
            return worker.life
        # It may have ended before anybody could say.
        log = self._logs.of(run.run_id)
        return Life.GONE if log.exists() and not is_held(log) else None

    def is_without_worker(self, run: DagsterRun) -> bool:
        """Whether a run is in progress and its worker is known to be gone."""
        if self.life_of_worker(run) != Life.GONE:
            return False
        # Before it went it may have written down that the run has ended.
        now = self._instance.get_run_by_id(run.run_id)
        return now is not None and now.status in _IN_PROGRESS

    def dispose(self) -> None:
        """Stop watching; the workers go on."""
        self._ending.set()

    @property
    def _logs(self) -> WorkerLogs:
        return WorkerLogs.below(self._instance.root_directory)

    def _has_outlasted(self, run: DagsterRun) -> bool:
        record = self._instance.get_run_record_by_id(run.run_id)
        if record is None or record.start_time is None:
            return False
        longest = float(self._instance.run_monitoring_max_runtime_seconds)
        with suppress(ValueError):
            longest = float(run.tags.get(MAX_RUNTIME, longest))
        return 0 < longest < time.time() - record.start_time

    def _start_watching(self) -> None:
        with self._lock:
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name="run-workers", daemon=True)
                self._watcher.start()

    def _watch(self) -> None:
        """Do what run monitoring does not: it asks after the workers of started runs, and stops none."""
        while not self._ending.wait(_BETWEEN_LOOKS):
            try:
                self._look()
            except Exception:
                # As in an outage of the database. Whatever it is, the next look may find it gone.
                _logger.exception("The workers of runs could not be looked after.")

    def _look(self) -> None:
        with self._lock:
            # Whoever is dead and not waited for would be taken for alive.
            self._children = [child for child in self._children if child.poll() is None]
        held = {run_id: is_held(log) for run_id, log in self._logs}
        if not held:
            return
        # Read only now: a worker that has ended has written down how its run did.
        runs = {run.run_id: run for run in self._instance.get_runs(RunsFilter(run_ids=list(held)))}
        for run_id, lives in held.items():
            if lives:
                self._look_at_living(run_id, runs.get(run_id))
            else:
                self._look_at_ended(run_id, runs.get(run_id))

    def _look_at_living(self, run_id: str, run: DagsterRun | None) -> None:
        worker = RunWorker.named(run_id, run.tags) if run else None
        if run is None or worker is None or not (run.is_finished or run.status == DagsterRunStatus.CANCELING):
            self._overdue.pop(run_id, None)
            return
        since = self._overdue.setdefault(run_id, time.monotonic())
        if time.monotonic() - since > GRACE:
            worker.process.signal(signal.SIGKILL)
        elif run.tags.get(_STOP_TAG) == run_id and run_id not in self._asked:
            # Once: what is asked twice is disturbed while it ends in order.
            self._asked.add(run_id)
            worker.process.signal(signal.SIGTERM)

    def _look_at_ended(self, run_id: str, run: DagsterRun | None) -> None:
        self._overdue.pop(run_id, None)
        self._asked.discard(run_id)
        if run is not None and run.status in {DagsterRunStatus.STARTING, DagsterRunStatus.CANCELING}:
            self._end(run, _ENDED_BEFORE_IT_BEGAN)
        if run is None or run.is_finished:
            self._logs.of(run_id).unlink(missing_ok=True)

    def _end(self, run: DagsterRun, why: str) -> None:
        if run.status == DagsterRunStatus.CANCELING:
            self._instance.report_run_canceled(run, "Canceled; its worker has ended.")
            return
        words = self.get_run_worker_debug_info(run)
        crash = JobFailureData(error=None, failure_reason=RunFailureReason.UNEXPECTED_TERMINATION)
        self._instance.report_run_failed(run, f"{why}\n{words}" if words else why, crash)


_IN_PROGRESS = [DagsterRunStatus.STARTING, DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING]


def _compressed(arguments: ExecuteRunArgs) -> str:
    return base64.b64encode(zlib.compress(serialize_value(arguments).encode())).decode()


def _folder(origin: JobPythonOrigin) -> str | None:
    """The folder that the code was loaded from, which is on the path of modules; None for the daemon's own."""
    folder = getattr(origin.get_repo_pointer(), "working_directory", None)
    return folder if folder and Path(folder).is_dir() else None
