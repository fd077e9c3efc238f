"""Whether a run's worker in one container is judged rightly from another: under its host's name or another's."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.containers import images
from tests.containers.composition import MISSING, RUNS_HERE, first_line, podman

pytestmark = [pytest.mark.timeout(1200), *RUNS_HERE]

# The first process of a container is its daemon; the worker is a child that holds its file, as the launcher starts it.
WORK = """
import subprocess, sys, time
from ticketflow_orch.dagster_host.run_workers import WorkerLogs, RunWorker
logs = WorkerLogs.below("/var/lib/ticketflow/dagster")
with logs.open_held("run") as held:
    child = subprocess.Popen(["sleep", "600"], stdout=held, process_group=0)
print(RunWorker.launched("run", child.pid, logs.of("run")).to_json(), flush=True)
time.sleep(600)
"""
JUDGE = """
import sys
from ticketflow_orch.dagster_host.run_workers import WORKER_TAG, RunWorker
print(RunWorker.named("run", {WORKER_TAG: sys.argv[1]}).life)
"""


@pytest.fixture(scope="module")
def image() -> str:
    assert not MISSING
    return images.build()


@pytest.fixture
def volume() -> Iterator[str]:
    name = f"tf-workers-{uuid.uuid4().hex[:8]}"
    yield name
    with suppress(AssertionError):
        podman("rm", "--force", "--time=0", name)
    podman("volume", "rm", "--force", name)


def run(image: str, volume: str, host: str, *options: str) -> list[str]:
    mount = f"--volume={volume}:/var/lib/ticketflow"
    return ["run", "--init", "--network=none", "--read-only", f"--hostname={host}", mount, *options,
            "--entrypoint=/opt/ticketflow/bin/python", image]  # fmt: skip


@pytest.mark.parametrize("judge", ["daemon", "another"])
def test_a_worker_lives_as_long_as_its_container_whatever_the_judge_is_called(
    image: str, volume: str, judge: str
) -> None:
    podman(*run(image, volume, "daemon", "--detach", f"--name={volume}"), "-c", WORK)
    worker = first_line(volume)
    judged = [*run(image, volume, judge, "--rm"), "-c", JUDGE, worker]
    assert podman(*judged).strip() == "lives"

    podman("kill", volume)
    podman("wait", volume)

    # In a namespace that may have got the number of the one that is gone.
    assert [podman(*judged).strip() for _ in range(3)] == ["gone"] * 3


def test_a_worker_whose_file_was_lost_with_its_volume_is_not_taken_for_dead(image: str, volume: str) -> None:
    podman(*run(image, volume, "daemon", "--detach", f"--name={volume}"), "-c", WORK)
    worker = first_line(volume)
    elsewhere = ["run", "--rm", "--network=none", "--read-only", "--hostname=daemon",
                 "--entrypoint=/opt/ticketflow/bin/python", image, "-c", JUDGE, worker]  # fmt: skip
    assert podman(*elsewhere).strip() == "out of sight"
