"""The services of the compose file as containers of podman in a network of their own; RUNTIME names its runtime."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.containers import compose
from tests.containers.network import own_network

DELIVERY = """
[destinations.file]
transport = "file"

[routes.default]
destination = "file"
"""
PASSWORD = "not-for-anybody"
MISSING = [program for program in ("podman", "buildah", "debootstrap", "ip") if shutil.which(program) is None]

RUNS_HERE = [
    pytest.mark.skipif(bool(MISSING), reason=f"no {', '.join(MISSING)} here"),
    pytest.mark.skipif("CONTAINERS" not in os.environ, reason="takes minutes; `make test-containers` runs it"),
]

_QUIET: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


@dataclass(frozen=True)
class Composition:
    """Its network, its document, and its containers by the names of their services."""

    name: str
    network: Path
    document: Mapping[str, Any]
    images: Mapping[str, str]

    def start(self) -> None:
        """Start all services in their order, each once those that it waits for are as it wants them."""
        started: set[str] = set()
        services = self.document["services"]
        while waiting := [name for name in services if name not in started]:
            for name in waiting:
                needs = services[name].get("depends_on", {})
                if set(needs) <= started:
                    for other, needed in needs.items():
                        self._await(other, needed["condition"])
                    self.run(name)
                    started.add(name)

    def run(self, service: str) -> None:
        """Make and start the container of a service."""
        said = self.document["services"][service]
        podman(
            "run", "--detach", f"--name={self.container(service)}", f"--network=ns:{self.network}",
            f"--hostname={service}",
            # As the engine's own resolver would say.
            *(f"--add-host={name}:127.0.0.1" for name in self.document["services"]),
            *compose.options(self.document, service, self.name), said["image"], *said.get("command", []),
        )  # fmt: skip

    def container(self, service: str) -> str:
        return f"{self.name}-{service}"

    def kill(self, service: str) -> None:
        """Kill the first process of a container, and so all that is in it."""
        os.kill(int(self.inspect(service, ".State.Pid")), signal.SIGKILL)

    def inspect(self, service: str, what: str) -> str:
        return podman("inspect", f"--format={{{{{what}}}}}", self.container(service)).strip()

    def is_healthy(self, service: str) -> bool:
        """Whether the health check that the file has for a service passes now."""
        # As the engine would, but by hand: where a container may not set its limits, podman cannot execute there.
        check = self.document["services"][service]["healthcheck"]
        first = self.inspect(service, ".State.Pid")
        account, _, group = (self.inspect(service, ".Config.User") or "0:0").partition(":")
        enter = [str(shutil.which("nsenter")), f"--target={first}", "--mount", "--pid", "--net", "--uts", "--ipc"]
        enter += ["--root", "--wd", f"--setuid={account}", f"--setgid={group}"]
        try:
            words = Path(f"/proc/{first}/environ").read_text("utf-8").split("\0")
            environment = dict(word.split("=", 1) for word in words if "=" in word)
            limit = compose.seconds(check["timeout"])
            done = subprocess.run([*enter, *check["test"][1:]], env=environment, timeout=limit, check=False, **_QUIET)
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0

    def log(self, service: str) -> str:
        done = _podman("logs", "--tail=40", self.container(service))
        return done.stdout + done.stderr

    def volume(self, name: str) -> Path:
        """Where the files of a volume are on this host."""
        return Path(podman("volume", "inspect", "--format={{.Mountpoint}}", f"{self.name}-{name}").strip())

    def wait_for(self, look: Callable[[], Any], what: str, patience: float = 240) -> Any:
        deadline = time.monotonic() + patience
        while not (seen := look()):
            logs = "\n".join(f"--- {name}\n{self.log(name)}" for name in self.document["services"])
            assert time.monotonic() < deadline, f"waited {patience:.0f} s for {what}:\n{logs}"
            time.sleep(1)
        return seen

    def _await(self, service: str, condition: str) -> None:
        if condition == "service_healthy":
            self.wait_for(lambda: self.is_healthy(service), f"the health of {service}", 120)
            return
        assert condition == "service_completed_successfully"
        code = podman("wait", self.container(service)).strip()
        assert code == "0", self.log(service)


@contextmanager
def composition(name: str, folder: Path, images: Mapping[str, str], **variables: str) -> Iterator[Composition]:
    """All services, started; they and their volumes are gone when the block ends."""
    secrets = folder / "secrets"
    secrets.mkdir()
    server = f"postgresql://ticketflow:{PASSWORD}@postgres:5432"
    for secret, value in {
        "postgres_password": PASSWORD,
        "database_url": f"{server}/ticketflow",
        "dagster_database_url": f"{server}/dagster",
    }.items():
        (secrets / secret).write_text(value + "\n")
        # Of the account of the containers, as docs/containers.md says.
        shutil.chown(secrets / secret, 10001, 10001)
        (secrets / secret).chmod(0o400)
    delivery = folder / "delivery.toml"
    delivery.write_text(DELIVERY)
    files = {"TICKETFLOW_SECRETS": str(secrets), "TICKETFLOW_DELIVERY": str(delivery)}
    document = compose.read({**variables, **images, **files})
    with own_network(name) as network:
        composed = Composition(name, network, document, images)
        try:
            composed.start()
            yield composed
        finally:
            for service in reversed(list(document["services"])):
                _podman("rm", "--force", "--time=2", composed.container(service))
            for volume in document["volumes"]:
                _podman("volume", "rm", "--force", f"{name}-{volume}")


def first_line(container: str, patience: float = 60) -> str:
    """What a container says first, once it has said something."""
    deadline = time.monotonic() + patience
    while not (said := podman("logs", container)):
        assert time.monotonic() < deadline, f"{container} has said nothing for {patience:.0f} s"
        time.sleep(0.2)
    return said.splitlines()[0]


def podman(*arguments: str) -> str:
    """What a command of podman says that must succeed."""
    done = _podman(*arguments)
    assert done.returncode == 0, f"podman {' '.join(arguments)}: {done.stderr}"
    return done.stdout


def _podman(*arguments: str) -> subprocess.CompletedProcess[str]:
    runtime = os.environ.get("RUNTIME")
    command = ["podman", *(["--runtime", runtime] if runtime else []), *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
