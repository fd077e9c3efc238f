"""A stub of the API of Kubernetes on 127.0.0.1, which records the Jobs it is given and runs them as processes here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Cluster:
    """Jobs by name, and the processes that stand for their pods. `answers`: what it says instead, a status of HTTP."""

    def __init__(self, folder: Path) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.deleted: list[str] = []
        self.answers: int | None = None
        self._folder = folder
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def kubeconfig(self) -> Path:
        """The file by which clients find it."""
        path = self._folder / "kubeconfig"
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "here",
            "clusters": [
                {"name": "here", "cluster": {"server": f"http://127.0.0.1:{self._server.server_port}"}},
            ],
            "users": [{"name": "test", "user": {}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "test"}}],
        }  # fmt: skip
        path.write_text(json.dumps(config), "utf-8")
        return path

    def start(self, name: str, secrets: dict[str, dict[str, str]], **replaced: str) -> subprocess.Popen[bytes]:
        """Run a Job's container here, with the environment that the Job names and no other but the path."""
        container = self.jobs[name]["spec"]["template"]["spec"]["containers"][0]
        environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        for source in container.get("envFrom", []):
            environment |= secrets[source["secretRef"]["name"]]
        for one in container.get("env", []):
            reference = one.get("valueFrom", {}).get("secretKeyRef")
            environment[one["name"]] = secrets[reference["name"]][reference["key"]] if reference else one["value"]
        with (self._folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                container.get("command", []) + container["args"],
                env=environment | replaced,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
            )
        return self.processes[name]

    def printed(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text("utf-8", errors="replace")

    def status(self, name: str) -> dict[str, int]:
        """A Job's status, from how its process does."""
        process = self.processes.get(name)
        code = process.poll() if process else None
        if code is None:
            return {"active": 1}
        return {"succeeded": 1} if code == 0 else {"failed": 1}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        for process in self.processes.values():
            process.kill()
            process.wait()


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """A cluster that is gone, with all that ran in it, when the block ends."""
    made = Cluster(folder)
    try:
        yield made
    finally:
        made.close()


def _handler(of: Cluster) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = self.path.partition("?")[0].split("/")
            if "pods" in parts:
                self._answer(200, {"apiVersion": "v1", "kind": "PodList", "items": []})
                return
            name = parts[7]
            if name not in of.jobs:
                self._answer(404, _said("NotFound"))
            else:
                self._answer(200, {**of.jobs[name], "status": of.status(name)})

        def do_POST(self) -> None:
            job = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            of.jobs[job["metadata"]["name"]] = job
            self._answer(201, job)

        def do_DELETE(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            name = self.path.partition("?")[0].split("/")[7]
            if of.answers is None:
                of.deleted.append(name)
                of.jobs.pop(name, None)
            self._answer(200, {"apiVersion": "v1", "kind": "Status", "status": "Success"})

        def _answer(self, status: int, body: dict[str, Any]) -> None:
            if of.answers is not None:
                status, body = of.answers, _said("Forbidden")
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def _said(reason: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": reason}
