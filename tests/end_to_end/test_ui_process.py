"""`ticketflow ui` as a process: it comes up whole, and whatever ends it leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.homes import fresh_home
from tests.support.ports import free_port
from ticketflow_orch.local.postgres import EmbeddedServer

LOCATION = """
import time
import dagster as dg

@dg.asset(pool="settlement")
def patient() -> None:
    for _ in range(600):
        time.sleep(0.1)

defs = dg.Definitions(assets=[patient], executor=dg.in_process_executor)
"""
SERVE = """
import sys
from ticketflow_orch.cli.ui import serve
from ticketflow_orch.settings import settings
sys.exit(serve(settings(), int(sys.argv[1]), "patience"))
"""
LAUNCH = """
mutation { launchPipelineExecution(executionParams: {
    selector: {repositoryLocationName: "ticketflow", repositoryName: "__repository__", pipelineName: "__ASSET_JOB",
               assetSelection: [{path: ["patient"]}]}, runConfigData: {}}) { __typename } }
"""
LOADS = """
{ workspaceOrError { ... on Workspace { locationEntries { locationOrLoadError { __typename } } } } }
"""
SCHEDULES = """
{ workspaceOrError { ... on Workspace { locationEntries { name locationOrLoadError {
    ... on PythonError { message }
    ... on RepositoryLocation { repositories { schedules { name scheduleState { status } } } } } } } } }
"""
TICKETFLOW = str(Path(sys.executable).with_name("ticketflow"))
WITHIN = 5.0


@pytest.fixture
def home(scratch: Path) -> Iterator[Path]:
    # What a killed process leaves in the folder for temporary files goes with the suite's own.
    with fresh_home(scratch, TMPDIR=str(scratch)) as home:
        yield home


@contextmanager
def started(*command: str, until: str = "TicketFlow is at") -> Iterator[subprocess.Popen[str]]:
    """The command as a foreground process of its own, once it has said `until`."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    descendants = []
    try:
        assert process.stdout is not None
        # A stuck start is ended by the suite's timeout; a failed one closes the pipe.
        line = process.stdout.readline()
        descendants = psutil.Process(process.pid).children(recursive=True)
        assert line.startswith(until), line + process.stdout.read()
        yield process
    finally:
        for child in descendants:
            if child.is_running():
                child.kill()
        process.kill()
        process.communicate()


def offer(location: str, folder: Path) -> None:
    """Let processes find the code location `patience`, beside what they find anyway."""
    (folder / "patience.py").write_text(location)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))


def ui(port: int) -> subprocess.CompletedProcess[str]:
    """What `ticketflow ui` says where it cannot start."""
    command = [TICKETFLOW, "ui", "--port", str(port)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)


def query(port: int, text: str) -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/graphql", json.dumps({"query": text}).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)["data"]


def wait_until(condition: Callable[[], object], seconds: float, every: float = 0.05) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(every)


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [process for process in processes if is_alive(process)]


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def everything_of(process: subprocess.Popen[str], home: Path) -> list[psutil.Process]:
    postmaster = EmbeddedServer(home).pid()
    assert postmaster is not None
    server = psutil.Process(postmaster)
    return [*psutil.Process(process.pid).children(recursive=True), server, *server.children(recursive=True)]


def assert_ends_whole(process: subprocess.Popen[str], processes: list[psutil.Process], port: int, code: int) -> None:
    since = time.monotonic()
    assert process.wait(timeout=WITHIN) == code
    assert time.monotonic() - since < WITHIN
    # What loses its parent ends by itself, a moment later.
    wait_until(lambda: not alive(processes), since + WITHIN - time.monotonic())
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def loads(port: int) -> bool:
    """Whether the code location can be used."""
    [entry] = query(port, LOADS)["workspaceOrError"]["locationEntries"]
    found = entry["locationOrLoadError"]
    return found is not None and found["__typename"] == "RepositoryLocation"


def runs(port: int) -> list[tuple[str, bool]]:
    """Status of each run, and whether it is a retry; newest first."""
    found = query(port, "{ runsOrError { ... on Runs { results { status parentRunId } } } }")["runsOrError"]["results"]
    return [(run["status"], run["parentRunId"] is not None) for run in found]


def test_ctrl_c_ends_a_run_in_progress_and_everything_else_within_five_seconds(home: Path, tmp_path: Path) -> None:
    offer(LOCATION, tmp_path)
    port = free_port()
    with started(sys.executable, "-c", SERVE, str(port)) as process:
        assert query(port, LAUNCH)["launchPipelineExecution"]["__typename"] == "LaunchRunSuccess"
        wait_until(lambda: runs(port) == [("STARTED", False)], 60, every=0.5)
        processes = everything_of(process, home)
        [code] = [each for each in processes if "grpc" in each.cmdline()]

        # The run has a process of its own, and the code is loaded again.
        server = code.parent()
        code.kill()
        wait_until(lambda: any("grpc" in each.cmdline() for each in alive(server.children())), 60, every=0.5)
        wait_until(lambda: loads(port), 60, every=0.5)
        assert runs(port) == [("STARTED", False)]
        processes = everything_of(process, home)

        os.killpg(process.pid, signal.SIGINT)

        assert_ends_whole(process, processes, port, 0)
        assert EmbeddedServer(home).pid() is None


def test_after_a_crash_what_is_left_is_named_and_the_run_that_went_down_is_retried(home: Path, tmp_path: Path) -> None:
    offer(LOCATION, tmp_path)
    port = free_port()
    with started(sys.executable, "-c", SERVE, str(port)) as process:
        query(port, LAUNCH)
        wait_until(lambda: runs(port) == [("STARTED", False)], 60, every=0.5)
        leaders = psutil.Process(process.pid).children()
        processes = everything_of(process, home)

        process.kill()
        process.wait(timeout=WITHIN)
        refused = ui(free_port())
        assert refused.returncode == 1
        named = refused.stderr.rsplit("kill ", 1)[1].split("`")[0].split()
        assert {int(pid) for pid in named} == {leader.pid for leader in leaders}

        for each in processes:
            with suppress(psutil.NoSuchProcess):
                each.kill()

    with started(sys.executable, "-c", SERVE, str(port)) as process:
        wait_until(lambda: runs(port) == [("STARTED", True), ("FAILURE", False)], 60, every=0.5)

        processes = everything_of(process, home)
        process.terminate()
        assert_ends_whole(process, processes, port, 0)


def test_the_real_location_comes_up_alone_with_schedules_on_and_ends_with_its_daemon_whose_log_is_quoted(
    home: Path,
) -> None:
    port = free_port()
    with started(TICKETFLOW, "ui", "--port", str(port)) as process:
        [entry] = query(port, SCHEDULES)["workspaceOrError"]["locationEntries"]
        [repository] = entry["locationOrLoadError"]["repositories"]
        assert entry["name"] == "ticketflow"
        states = {each["name"]: each["scheduleState"]["status"] for each in repository["schedules"]}
        assert "settlement_schedule" in states
        assert set(states.values()) == {"RUNNING"}

        second = ui(free_port())
        assert second.returncode == 1
        assert f"end it first with `kill {process.pid}`" in second.stderr

        processes = everything_of(process, home)
        # Children of its own only: backends of Postgres come and go, and one that is gone has no command line.
        children = psutil.Process(process.pid).children()
        [daemon] = [each for each in children if "dagster._daemon" in each.cmdline()]

        daemon.kill()

        assert_ends_whole(process, processes, port, 1)
        assert process.stdout is not None
        said = process.stdout.read()
        assert "The daemon ended by itself with code -9" in said
        # The terminal's colours go when nobody sees them.
        written = re.sub(r"\x1b\[[0-9;]*m", "", (home / "logs" / "daemon.log").read_text("utf-8")).splitlines()
        assert written[-1] in said


def test_a_port_in_use_is_refused_before_anything_starts(home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = ui(port)

    assert refused.returncode == 1
    assert refused.stderr == (
        f"error: Port {port} on 127.0.0.1 cannot be used (Address already in use); choose another with --port.\n"
    )
    assert not (home / "postgres").exists()
