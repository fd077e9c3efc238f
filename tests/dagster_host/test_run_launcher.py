"""Each run has a process of its own: found by its tags, judged while it lives, ended when asked, and told when gone."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import IO, cast

import dagster as dg
import pytest
from dagster import DagsterEventType, DagsterInstance, DagsterRun, DagsterRunStatus
from dagster._core.code_pointer import ModuleCodePointer
from dagster._core.launcher import LaunchRunContext, WorkerStatus
from dagster._core.origin import JobPythonOrigin, RepositoryPythonOrigin
from dagster_postgres import PostgresRunStorage
from sqlalchemy import text

from tests.conftest import fresh_database
from tests.support.homes import MIGRATING, fresh_home, variables_for
from tests.support.launched_runs import now, poll, report
from tests.support.patience import patient, stubborn
from ticketflow_orch.cli.dagster_state import runs_without_worker
from ticketflow_orch.dagster_host import run_launcher, run_workers
from ticketflow_orch.dagster_host.instance import end_runs_without_worker, running
from ticketflow_orch.dagster_host.run_launcher import ProcessRunLauncher, WorkerOutOfSightError
from ticketflow_orch.dagster_host.run_workers import WORKER_TAG, HasWorkerError, RunWorker, WorkerLogs, is_held
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.local.process_identity import Life, ProcessIdentity
from ticketflow_orch.settings import read_settings

ROOT = Path(__file__).parents[2]
STARTED, CANCELING = DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING
FAILURE, CANCELED = DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED
EVENTS = {
    DagsterRunStatus.NOT_STARTED: (),
    DagsterRunStatus.STARTING: (DagsterEventType.RUN_STARTING,),
    STARTED: (DagsterEventType.RUN_STARTING, DagsterEventType.RUN_START),
    CANCELING: (DagsterEventType.RUN_STARTING, DagsterEventType.RUN_START, DagsterEventType.RUN_CANCELING),
}


@pytest.fixture(scope="module")
def instance(clusters: Callable[[str], EmbeddedServer], scratch: Path) -> Iterator[DagsterInstance]:
    """A bootstrapped instance, opened as any Dagster process opens it."""
    server = clusters("postgres18")
    with fresh_database(server) as url:
        storage = server.url(f"{url.database}_dagster")
        with (
            fresh_home(scratch, **variables_for(url, storage)),
            running(read_settings(), asked=MIGRATING),
            DagsterInstance.get() as instance,
        ):
            yield instance


@pytest.fixture(autouse=True)
def no_runs(instance: DagsterInstance) -> Iterator[None]:
    """Each test leaves no run and no worker."""
    yield
    for run in instance.get_runs():
        worker = RunWorker.named(run.run_id, run.tags)
        if worker is not None and worker.log and worker.process.pid != os.getpid():
            worker.process.signal(signal.SIGKILL)
        instance.delete_run(run.run_id)


@pytest.fixture
def launcher(instance: DagsterInstance) -> ProcessRunLauncher:
    return cast("ProcessRunLauncher", instance.run_launcher)


def launch(instance: DagsterInstance, job: dg.JobDefinition, module: str = "tests.support.patience") -> DagsterRun:
    """A run whose worker is started as the daemon does."""
    pointer = ModuleCodePointer(module, "defs", str(ROOT))
    origin = JobPythonOrigin(job.name, RepositoryPythonOrigin(sys.executable, pointer))
    run = instance.create_run_for_job(job, job_code_origin=origin)
    report(instance, run, DagsterEventType.RUN_STARTING)
    instance.run_launcher.launch_run(LaunchRunContext(now(instance, run), None))
    return now(instance, run)


def unexecuted(
    instance: DagsterInstance, worker: RunWorker, status: DagsterRunStatus = STARTED, **tags: str
) -> DagsterRun:
    """A run that nobody executes, whose tags say that `worker` does."""
    run = instance.create_run_for_job(patient, tags={f"dagster/{name}": value for name, value in tags.items()})
    for event in EVENTS[status]:
        report(instance, run, event)
    instance.add_run_tags(run.run_id, {WORKER_TAG: replace(worker, run_id=run.run_id).to_json()})
    return now(instance, run)


def worker_of(instance: DagsterInstance, run: DagsterRun) -> RunWorker:
    named = RunWorker.named(run.run_id, now(instance, run).tags)
    assert named is not None
    return named


def wait_for(condition: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.1)


def wait_for_status(instance: DagsterInstance, run: DagsterRun, status: DagsterRunStatus) -> None:
    wait_for(lambda: now(instance, run).status == status)


def here(pid: int | None = None) -> RunWorker:
    """A worker of this machine: this process unless another is named."""
    return RunWorker("any", ProcessIdentity.of(pid or os.getpid()), log="", inode=0)


def gone() -> RunWorker:
    """One that has ended, whose process id is another's by now."""
    return replace(here(), process=replace(here().process, started="1"))


def elsewhere() -> RunWorker:
    """One of another machine, of which nothing can be known here."""
    return replace(here(), process=replace(here().process, host="elsewhere", machine="another", boot="another"))


def messages(instance: DagsterInstance, run: DagsterRun) -> str:
    return "\n".join(entry.message or entry.user_message for entry in instance.all_logs(run.run_id))


def test_a_run_goes_on_in_a_process_of_its_own_and_its_death_is_noticed_within_one_poll(
    instance: DagsterInstance, launcher: ProcessRunLauncher
) -> None:
    run = launch(instance, patient)
    named = worker_of(instance, run)
    wait_for(lambda: 'STEP_START - Started execution of step "wait"' in Path(named.log).read_text())
    assert now(instance, run).status == STARTED
    assert worker_of(instance, run) == named, "the worker itself says the same"
    assert os.getpgid(named.process.pid) == named.process.pid
    command = Path(f"/proc/{named.process.pid}/cmdline").read_bytes().split(b"\0")
    assert command[1:-1] == [b"-m", b"dagster", b"api", b"execute_run"], "nobody reads there how to reach the database"
    assert launcher.check_run_worker_health(now(instance, run)).status == WorkerStatus.RUNNING
    assert poll(instance) == []
    assert now(instance, run).status == STARTED
    assert end_runs_without_worker(instance) == []

    named.process.signal(signal.SIGKILL)
    wait_for(lambda: named.life == Life.GONE)
    assert list(runs_without_worker(instance)) == [
        f"run {run.run_id} of patient: its worker ({named.process}) is gone; "
        "the daemon ends it within a minute, or terminate it on its page."
    ]
    assert poll(instance) == []
    assert now(instance, run).status == FAILURE
    assert f"({named.process}) is gone" in messages(instance, run)
    assert 'STEP_START - Started execution of step "wait"' in messages(instance, run), "the last words"
    assert list(runs_without_worker(instance)) == []
    # Nothing is left of it.
    wait_for(lambda: not list(WorkerLogs.below(instance.root_directory)))


def test_a_run_that_two_daemons_take_out_of_the_queue_is_executed_by_one_worker(
    instance: DagsterInstance, launcher: ProcessRunLauncher
) -> None:
    run = launch(instance, patient)
    first = worker_of(instance, run)
    launcher.launch_run(LaunchRunContext(now(instance, run), None))
    assert "has a worker already" in messages(instance, run)
    assert worker_of(instance, run).process == first.process
    wait_for_status(instance, run, STARTED)


def test_of_many_who_start_the_worker_of_a_run_at_once_one_holds_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_workers, "_LONGEST_WAIT", 0.3)
    logs = WorkerLogs(tmp_path / "workers")

    def start(_: int) -> IO[bytes] | None:
        try:
            return logs.open_held("a-run")
        except HasWorkerError:
            return None

    # In the second round they find the file of a worker that has ended.
    for _ in range(2):
        with ThreadPoolExecutor(8) as starters:
            [held] = filter(None, starters.map(start, range(8)))
        with held:
            assert is_held(logs.of("a-run"))
        assert [each.name for each in logs.folder.iterdir()] == ["a-run.log"]


def test_a_run_that_is_terminated_ends_as_canceled_and_one_that_does_not_listen_is_killed(
    instance: DagsterInstance, launcher: ProcessRunLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_launcher, "GRACE", 1.0)
    elsewhere, deaf = (launch(instance, job) for job in (patient, stubborn))
    for run in (elsewhere, deaf):
        wait_for(lambda run=run: "Started execution of step" in messages(instance, run))
    with monkeypatch.context() as other_host:
        other_host.setattr(ProcessIdentity, "is_here", property(lambda _: False))
        assert launcher.terminate(elsewhere.run_id)
    assert "the daemon there stops it" in messages(instance, elsewhere)
    since = time.monotonic()
    assert launcher.terminate(deaf.run_id)
    assert time.monotonic() - since < 2, "it does not wait for the worker"
    for run in (elsewhere, deaf):
        wait_for_status(instance, run, CANCELED)
        wait_for(lambda run=run: worker_of(instance, run).life == Life.GONE)
        assert not launcher.terminate(run.run_id)


def test_a_worker_that_ends_before_its_run_begins_is_noticed_also_after_an_outage(
    instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def away(*_: object, **__: object) -> list[DagsterRun]:
        asked.append(1)
        raise ConnectionError("the database is away")

    run = launch(instance, patient)
    with monkeypatch.context() as outage:
        outage.setattr(instance, "get_runs", away)
        worker_of(instance, run).process.signal(signal.SIGKILL)
        wait_for(lambda: len(asked) >= 2)
    wait_for_status(instance, run, FAILURE)
    assert "ended before the run began" in messages(instance, run)


def test_a_run_that_somebody_executes_in_a_command_is_known_by_its_process_and_not_ended_for_them(
    instance: DagsterInstance, launcher: ProcessRunLauncher
) -> None:
    done = {run.run_id for run in instance.get_runs()}
    program = (
        "from dagster import DagsterInstance\nfrom tests.support.patience import patient\n"
        "with DagsterInstance.get() as instance: patient.execute_in_process(instance=instance)"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stderr=subprocess.DEVNULL) as command:
        wait_for(lambda: any(run.status == STARTED for run in instance.get_runs()))
        (run,) = (run for run in instance.get_runs() if run.run_id not in done)
        wait_for(lambda: RunWorker.named(run.run_id, now(instance, run).tags))
        assert worker_of(instance, run).process.pid == command.pid
        assert not launcher.terminate(run.run_id)
        assert (poll(instance), now(instance, run).status) == ([], STARTED)
        command.kill()
    assert (poll(instance), now(instance, run).status) == ([], FAILURE)


def test_of_a_worker_out_of_sight_nothing_is_said_until_its_run_has_taken_its_longest_time(
    instance: DagsterInstance, launcher: ProcessRunLauncher
) -> None:
    run = unexecuted(instance, elsewhere())
    with pytest.raises(WorkerOutOfSightError, match="on elsewhere executes run"):
        launcher.check_run_worker_health(run)
    [error] = poll(instance)
    assert "WorkerOutOfSightError" in error.to_string()
    assert end_runs_without_worker(instance) == []
    assert now(instance, run).status == STARTED
    [line] = runs_without_worker(instance)
    assert "on elsewhere) lives cannot be known, and no daemon works there" in line

    late = unexecuted(instance, elsewhere(), max_runtime="0.5")
    time.sleep(0.6)
    assert len(poll(instance)) == 1
    assert now(instance, late).status == FAILURE


@pytest.mark.parametrize("status", [STARTED, CANCELING], ids=lambda status: status.value)
def test_a_start_ends_the_runs_whose_worker_is_gone_and_no_others(
    instance: DagsterInstance, status: DagsterRunStatus
) -> None:
    dead, living, foreign = (unexecuted(instance, worker, status) for worker in (gone(), here(), elsewhere()))
    assert end_runs_without_worker(instance) == [dead.run_id]
    assert now(instance, dead).status == (FAILURE if status == STARTED else CANCELED)
    assert {now(instance, run).status for run in (living, foreign)} == {status}


def test_terminating_a_run_whose_worker_is_gone_ends_it_at_once(
    instance: DagsterInstance, launcher: ProcessRunLauncher
) -> None:
    run = unexecuted(instance, gone())
    assert launcher.terminate(run.run_id)
    assert now(instance, run).status == CANCELED


def test_a_retry_does_not_take_over_the_worker_of_the_run_that_it_repeats(
    instance: DagsterInstance, launcher: ProcessRunLauncher
) -> None:
    parent = unexecuted(instance, gone())
    retry = instance.create_run_for_job(
        patient, tags=dict(parent.tags), parent_run_id=parent.run_id, root_run_id=parent.run_id
    )
    report(instance, retry, DagsterEventType.RUN_STARTING)
    assert launcher.life_of_worker(now(instance, retry)) is None
    report(instance, retry, DagsterEventType.RUN_START)
    assert worker_of(instance, retry).process == here().process


@pytest.mark.parametrize(
    "status", [DagsterRunStatus.NOT_STARTED, DagsterRunStatus.STARTING], ids=lambda each: each.value
)
def test_a_run_that_was_never_launched_is_ended_after_a_minute(
    instance: DagsterInstance, status: DagsterRunStatus
) -> None:
    run = instance.create_run_for_job(patient)
    for event in EVENTS[status]:
        report(instance, run, event)
    assert (poll(instance), now(instance, run).status) == ([], status)
    a_minute_ago = "(now() AT TIME ZONE 'UTC') - interval '61 s'"
    with cast("PostgresRunStorage", instance.run_storage).connect() as connection:
        connection.execute(text(f"UPDATE runs SET create_timestamp = {a_minute_ago}"))
        connection.execute(text(f"UPDATE event_logs SET timestamp = {a_minute_ago}"))
    assert (poll(instance), now(instance, run).status) == ([], FAILURE)


def test_a_worker_of_another_container_with_the_same_home_is_judged_by_the_file_that_it_holds(
    instance: DagsterInstance, launcher: ProcessRunLauncher
) -> None:
    logs = WorkerLogs.below(instance.root_directory)
    run = instance.create_run_for_job(patient)
    with logs.open_held(run.run_id):
        log = logs.of(run.run_id)
        process = replace(here().process, namespace="pid:[1]")
        worker = RunWorker(run.run_id, process, str(log), log.stat().st_ino)
        assert (process.life, worker.life) == (Life.OUT_OF_SIGHT, Life.LIVES)
        with pytest.raises(HasWorkerError, match="has a worker already"):
            logs.open_held(run.run_id)
    assert worker.life == Life.GONE
    # A copy of the home is no proof of anything.
    assert replace(worker, inode=0).life == Life.OUT_OF_SIGHT
    log.unlink()
    assert worker.life == Life.OUT_OF_SIGHT


def test_what_ran_before_this_machine_was_restarted_is_gone() -> None:
    process = replace(here().process, boot="the boot before")
    assert process.life == (Life.GONE if process.machine else Life.OUT_OF_SIGHT)
    assert replace(process, host="another container").life == Life.OUT_OF_SIGHT
    assert replace(process, machine="").life == Life.OUT_OF_SIGHT


def test_a_zombie_is_gone_and_a_process_that_took_its_id_is_another() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        identity = ProcessIdentity.of(process.pid)
        assert ProcessIdentity.parse(identity.to_json()) == identity
        assert identity.life == Life.LIVES
        assert replace(identity, started="1").life == Life.GONE
        assert not replace(identity, started="1").signal(signal.SIGKILL)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert identity.life == Life.GONE
    assert not identity.signal(signal.SIGTERM)
    assert identity.host == socket.gethostname()


@pytest.mark.parametrize("written", ["", "{}", "[]", "null", '{"run_id": "x"}', '{"run_id": "x", "process": {}}'])
def test_a_tag_that_somebody_wrote_names_no_worker(written: str) -> None:
    assert RunWorker.named("x", {WORKER_TAG: written}) is None


def test_who_executes_a_run_is_read_from_a_tag_as_it_was_written() -> None:
    worker = replace(here(), run_id="x")
    assert RunWorker.named("x", {WORKER_TAG: worker.to_json()}) == worker
    assert RunWorker.named("y", {WORKER_TAG: worker.to_json()}) is None
