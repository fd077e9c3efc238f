"""nginx before the web servers: nobody without a password, viewers change nothing, and the log says who did what."""

from __future__ import annotations

import base64
import json
import os
import shutil
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
import trustme
from dagster import DagsterInstance

from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin")
pytestmark = [
    pytest.mark.skipif(NGINX is None, reason="there is no nginx here: apt-get install nginx-light"),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl here, which hashes passwords"),
]
PATIENCE = 60.0
JOB = """
import dagster as dg

@dg.job
def nothing():
    pass
"""
AROUND = """
daemon off;
master_process off;
pid {folder}/pid;
error_log {folder}/error.log;
events {{}}
http {{
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/ticketflow.conf;
}}
"""
LAUNCH = """
mutation LaunchRunMutation($selector: JobOrPipelineSelector!) {
  launchRun(executionParams: {selector: $selector, runConfigData: {}}) { __typename }
}
"""
WHERE = "{ repositoriesOrError { ... on RepositoryConnection { nodes { name location { name } } } } }"


@dataclass(frozen=True)
class Proxy:
    """A running proxy; passwords are the users' names."""

    port: int
    log: Path
    trust: ssl.SSLContext

    def ask(self, path: str, user: str | None, body: Any = None, **headers: str) -> tuple[int, str]:
        request = urllib.request.Request(f"https://127.0.0.1:{self.port}{path}", headers=headers)
        if user is not None:
            request.add_header("Authorization", "Basic " + base64.b64encode(f"{user}:{user}".encode()).decode())
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE, context=self.trust) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def launch(self, path: str, user: str, **headers: str) -> tuple[int, str]:
        [found] = json.loads(self.ask("/graphql", "vera", {"query": WHERE})[1])["data"]["repositoriesOrError"]["nodes"]
        names = (found["location"]["name"], found["name"], "nothing")
        selector = dict(zip(("repositoryLocationName", "repositoryName", "pipelineName"), names, strict=True))
        body = {"operationName": "LaunchRunMutation", "query": LAUNCH, "variables": {"selector": selector}}
        return self.ask(path, user, body, **headers)

    def logged(self) -> list[dict[str, str]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    folder = tmp_path_factory.mktemp("proxy")
    (folder / "job.py").write_text(JOB)
    (folder / "home").mkdir()
    (folder / "home" / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    # Two processes that make the files of one home at once are in each other's way.
    with DagsterInstance.from_config(str(folder / "home")) as instance:
        assert instance.get_runs() == []
    operators, viewers, port = (free_port() for _ in range(3))
    trust = configure(folder, {"127.0.0.1:3000": operators, "127.0.0.1:3001": viewers, "443 ssl": port})
    webserver = [sys.executable, "-m", "ticketflow_orch.dagster_host.webserver", "-f", "job.py", "-h", "127.0.0.1"]
    environment = {**os.environ, "DAGSTER_HOME": str(folder / "home")}
    commands = (
        [*webserver, "-p", str(operators), "--path-prefix", "/ops"],
        [*webserver, "-p", str(viewers), "--read-only"],
        [NGINX, "-p", folder, "-c", folder / "nginx.conf"],
    )
    started: list[subprocess.Popen[bytes]] = []
    try:
        with (folder / "out").open("wb") as out:
            started.extend(
                subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=subprocess.STDOUT)
                for command in commands
            )
        running = Proxy(port, folder / "ticketflow.log", trust)
        deadline = time.monotonic() + PATIENCE
        while not all(serves(running, path) for path in ("/ops/graphql", "/graphql")):
            assert time.monotonic() < deadline, (folder / "out").read_text() + (folder / "error.log").read_text()
            time.sleep(0.2)
        yield running
    finally:
        for process in started:
            process.terminate()
        for process in started:
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()


def configure(folder: Path, ports: dict[str, int]) -> ssl.SSLContext:
    """Write the configuration that is deployed, with places and ports of the test's own."""
    text = (ROOT / "deploy" / "nginx" / "ticketflow.conf").read_text()
    for place, port in ports.items():
        assert place in text
        new = f"127.0.0.1:{port}"
        text = text.replace(place, f"{new} ssl" if "ssl" in place else new)
    for place in ("/etc/nginx/", "/var/log/nginx/"):
        assert place in text
        text = text.replace(place, f"{folder}/")
    (folder / "ticketflow.conf").write_text(text)
    (folder / "nginx.conf").write_text(AROUND.format(folder=folder))
    for file, users in (("operators", ["olga"]), ("viewers", ["olga", "vera"])):
        lines = [f"{user}:{hashed(user)}\n" for user in users]
        (folder / f"ticketflow-{file}.htpasswd").write_text("".join(lines))
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(str(folder / "ticketflow.key"))
    certificate.cert_chain_pems[0].write_to_path(str(folder / "ticketflow.crt"))
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    return trust


def hashed(password: str) -> str:
    command = ["openssl", "passwd", "-apr1", password]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def serves(proxy: Proxy, path: str) -> bool:
    """Whether the web server behind `path` answers, and has loaded the code."""
    with suppress(urllib.error.URLError, ConnectionError):
        status, said = proxy.ask(path, "olga" if path.startswith("/ops") else "vera", {"query": WHERE})
        return status == 200 and bool(json.loads(said)["data"]["repositoriesOrError"].get("nodes"))
    return False


def launches(proxy: Proxy, before: int) -> list[dict[str, str]]:
    """The launches among the lines of the log beyond the first `before`, which come a moment after the answer."""
    deadline = time.monotonic() + PATIENCE
    while True:
        found = [line for line in proxy.logged()[before:] if line["operation"] == "LaunchRunMutation"]
        if found or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


@pytest.mark.parametrize("path", ["/", "/graphql", "/ops/", "/ops/graphql", "/server_info", "/ops/server_info"])
def test_nobody_gets_in_without_a_password(proxy: Proxy, path: str) -> None:
    assert proxy.ask(path, None)[0] == 401
    assert proxy.ask(path, "mallory")[0] == 401


def test_a_viewer_reads_and_launches_nothing(proxy: Proxy) -> None:
    status, said = proxy.ask("/graphql", "vera", {"query": "{ runsOrError { __typename } }"})
    assert (status, json.loads(said)["data"]["runsOrError"]["__typename"]) == (200, "Runs")
    status, said = proxy.launch("/graphql", "vera")
    assert (status, json.loads(said)["data"]["launchRun"]["__typename"]) == (200, "UnauthorizedError")
    assert proxy.launch("/ops/graphql", "vera")[0] == 401


def test_an_operator_launches_and_the_log_says_who_it_was(proxy: Proxy) -> None:
    before = len(proxy.logged())
    status, said = proxy.launch("/ops/graphql", "olga")
    assert (status, json.loads(said)["data"]["launchRun"]["__typename"]) == (200, "LaunchRunSuccess")
    [line] = launches(proxy, before)
    assert {name: line[name] for name in ("user", "method", "path", "status")} == {
        "user": "olga",
        "method": "POST",
        "path": "/ops/graphql",
        "status": "200",
    }


def test_a_page_of_another_site_cannot_act_with_a_remembered_password(proxy: Proxy) -> None:
    assert proxy.launch("/ops/graphql", "olga", **{"Sec-Fetch-Site": "cross-site"})[0] == 403
    assert proxy.ask("/ops/server_info", "olga", **{"Sec-Fetch-Site": "cross-site"})[0] == 200


@pytest.mark.parametrize(("user", "status"), [("olga", 101), ("vera", 401)])
def test_the_web_socket_asks_for_the_password_too(proxy: Proxy, user: str, status: int) -> None:
    connection = HTTPSConnection("127.0.0.1", proxy.port, context=proxy.trust, timeout=PATIENCE)
    connection.request(
        "GET",
        "/ops/graphql",
        headers={
            "Authorization": "Basic " + base64.b64encode(f"{user}:{user}".encode()).decode(),
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Key": base64.b64encode(bytes(16)).decode(),
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Protocol": "graphql-ws",
        },
    )
    assert connection.getresponse().status == status
    connection.close()
