"""A back office as servers run it: Postgres, code server, webserver and daemon, each a process of its own.

A process that ends is started again a second later, as systemd does, unless the test holds it down.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import psutil

from tests.end_to_end.back_office import BIN, BackOffice, bare_environment
from tests.support.homes import variables_for
from tests.support.ports import free_port
from tests.support.silence import Wire, wire
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.local.postgres import EmbeddedServer

RESTART = 1.0


@dataclass
class Service:
    """A process that is kept running."""

    name: str
    command: Sequence[str]
    process: psutil.Popen
    held: bool = False


@dataclass
class PlainHost:
    """The services of one host and its server; connections to the server lead through `line`."""

    home: Path
    server: EmbeddedServer
    line: Wire
    environment: Mapping[str, str]
    services: dict[str, Service] = field(default_factory=dict)
    _ending: threading.Event = field(default_factory=threading.Event)

    def start(self, name: str, *command: str) -> None:
        """Run a command as a service."""
        words = [sys.executable, "-m", *command]
        self.services[name] = Service(name, words, self._launch(name, words))

    def kill(self, name: str) -> None:
        """Kill a service and all that it has started."""
        for process in self._family(name):
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def hold(self, name: str) -> None:
        """End a service in order, and keep it down."""
        self.services[name].held = True
        self.services[name].process.terminate()

    def release(self, name: str) -> None:
        """Let a service that was held run again."""
        self.services[name].held = False

    def supervise(self) -> None:
        """Start again what ends, until the host is given up."""
        while not self._ending.wait(RESTART):
            for service in self.services.values():
                if service.process.poll() is not None and not service.held:
                    service.process = self._launch(service.name, service.command)

    def give_up(self) -> None:
        """End everything, whatever state it is in."""
        self._ending.set()
        for name, service in self.services.items():
            service.held = True
            self.kill(name)
            service.process.wait(60)

    def poll(self) -> int | None:
        """As of a process that runs: the host itself does not end."""
        return None

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """What a command of ours says and returns on this host."""
        return subprocess.run(
            [BIN / "ticketflow", *arguments], env=self.environment, cwd=self.home, capture_output=True, text=True,
            check=False, timeout=120,
        )  # fmt: skip

    def _family(self, name: str) -> list[psutil.Process]:
        process = self.services[name].process
        with suppress(psutil.NoSuchProcess):
            return [process, *process.children(recursive=True)]
        return []

    def _launch(self, name: str, command: Sequence[str]) -> psutil.Popen:
        with (self.home / "logs" / f"{name}.log").open("ab") as log:
            return psutil.Popen(
                command, env=self.environment, cwd=self.home, stdout=log, stderr=log, start_new_session=True
            )


@contextmanager
def plain_host(home: Path, **variables: str) -> Iterator[tuple[PlainHost, BackOffice]]:
    """A host with everything running, and its back office as people see it."""
    (home / "logs").mkdir(parents=True)
    server = EmbeddedServer(home / "server")
    server.start()
    port = free_port()
    try:
        with wire(server.socket_directory / f".s.PGSQL.{server.url().port}") as line:
            through = {"host": "127.0.0.1", "port": line.port, "query": {}}
            ours, dagsters = (server.url(name).set(**through) for name in ("ticketflow", "dagster"))
            environment = bare_environment(home) | variables_for(ours, dagsters) | variables
            host = PlainHost(home, server, line, environment)
            for command in (["migrate"], ["env", "--json"]):
                done = host.run(*command)
                assert done.returncode == 0, done.stderr
            host.environment = environment | json.loads(done.stdout)
            engine = connect_engine(server.url("ticketflow"), "outages")
            office = BackOffice(cast("psutil.Popen", host), f"http://127.0.0.1:{port}", home, host.environment, engine)
            try:
                _start(host, port)
                threading.Thread(target=host.supervise, daemon=True).start()
                office.wait_for(lambda: _answers(office), "the web pages")
                yield host, office
            finally:
                host.give_up()
                engine.dispose()
    finally:
        server.remove()


def _start(host: PlainHost, port: int) -> None:
    socket = host.home / "code.sock"
    workspace = host.home / "workspace.yaml"
    location = {"grpc_server": {"socket": str(socket), "location_name": "ticketflow"}}
    workspace.write_text(json.dumps({"load_from": [location]}), "utf-8")
    host.start(
        "code-server", "dagster", "code-server", "start", "--socket", str(socket), "--module-name",
        "ticketflow_orch.definitions", "--location-name", "ticketflow",
    )  # fmt: skip
    host.start("daemon", "dagster._daemon", "run", "--workspace", str(workspace))
    host.start(
        "webserver", "dagster_webserver", "--host", "127.0.0.1", "--port", str(port), "--workspace", str(workspace)
    )


def _answers(office: BackOffice) -> bool:
    with suppress(OSError):
        [location] = office.ask(LOCATIONS)["workspaceOrError"]["locationEntries"]
        return bool(location["locationOrLoadError"]["__typename"] == "RepositoryLocation")
    return False


LOCATIONS = """
{ workspaceOrError { ... on Workspace { locationEntries { locationOrLoadError { __typename } } } } }
"""
