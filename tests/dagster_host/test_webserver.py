"""The real webserver answers to its own names, and to nobody else's."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ports import free_port

HANDSHAKE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Protocol": "graphql-ws",
}


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder, port = tmp_path_factory.mktemp("webserver"), free_port()
    command = [
        sys.executable, "-m", "ticketflow_orch.dagster_host.webserver",
        "--host", "127.0.0.1", "--port", str(port), "--empty-workspace", "--log-level", "warning",
    ]  # fmt: skip
    variables = {"DAGSTER_HOME": str(folder), "TICKETFLOW_ALLOWED_HOSTS": "back.example.com, *.office.example"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env={**os.environ, **variables}, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        _await(process, port, folder / "log")
        yield port
    finally:
        process.kill()
        process.wait()


def _await(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        try:
            assert status(port, f"127.0.0.1:{port}", "GET", "/server_info") == 200
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise AssertionError(log.read_text("utf-8", errors="replace"))


def status(port: int, host: str, method: str, path: str, *, body: bytes | None = None, **headers: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, body, {"Host": host, **headers})
        return connection.getresponse().status
    finally:
        connection.close()


def ask(port: int, host: str) -> int:
    question = json.dumps({"query": "{ version }"}).encode()
    return status(port, host, "POST", "/graphql", body=question, **{"Content-Type": "application/json"})


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "back.example.com", "a.office.example"])
def test_its_own_names_are_answered(port: int, host: str) -> None:
    assert ask(port, f"{host}:{port}") == 200
    assert status(port, f"{host}:{port}", "GET", "/graphql", **HANDSHAKE) == 101


@pytest.mark.parametrize("host", ["rebound.example", "127.0.0.1.rebound.example", "office.example", "10.0.0.1", ""])
def test_the_names_of_others_are_refused_on_every_way(port: int, host: str) -> None:
    assert ask(port, host) == 400
    assert status(port, host, "GET", "/server_info") == 400
    assert status(port, host, "GET", "/graphql", **HANDSHAKE) == 400
