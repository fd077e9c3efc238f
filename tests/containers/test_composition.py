"""The composition for real: three months through GraphQL while each container is killed once, as without containers."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.engine import URL

from tests.containers import images
from tests.containers.composition import PASSWORD, RUNS_HERE, Composition, composition, podman
from tests.containers.network import door
from tests.end_to_end.back_office import LAUNCH_BACKFILL, RUNS
from tests.support.rows import instant
from tests.support.settled import settle
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.demo_data import load_demo
from ticketflow_orch.months import Month

MONTHS = [Month(2025, number) for number in (1, 2, 3)]
NOW = "2025-07-10T05:00:00Z"
ORGANIZATIONS = 120
FINISHED = ("SUCCESS", "FAILURE", "CANCELED")
pytestmark = [pytest.mark.timeout(2400), *RUNS_HERE]


@dataclass(frozen=True)
class Office:
    """A composition as people see it: its web pages and its database."""

    composed: Composition
    address: str
    engine: Engine

    def ask(self, query: str, **variables: Any) -> Any:
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.address}/graphql", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            answer = json.load(response)
        assert "errors" not in answer, answer["errors"]
        return answer["data"]

    def count(self, query: str) -> int:
        """A figure of the database; waits while that is away."""

        def look() -> list[int]:
            with suppress(Exception), self.engine.connect() as connection:
                return [int(connection.execute(text(query)).scalar_one())]
            return []

        return int(self.composed.wait_for(look, "the database")[0])


@pytest.fixture(scope="module")
def built() -> dict[str, str]:
    return {"TICKETFLOW_IMAGE": images.build(), "POSTGRES_IMAGE": images.build_postgres()}


@pytest.fixture
def office(built: dict[str, str], tmp_path: Path) -> Iterator[Office]:
    variables = {
        "TICKETFLOW_FIXED_CLOCK": NOW, "TICKETFLOW_CHUNK_SIZE": "4", "TICKETFLOW_CHUNK_PAUSE": "1",
        "TICKETFLOW_PAYOUTS_FROM": "2025-01",
    }  # fmt: skip
    with composition("tf-test", tmp_path, built, **variables) as composed, _doors(composed) as office:
        yield office


@contextmanager
def _doors(composed: Composition) -> Iterator[Office]:
    with door(composed.network, 5432) as server, door(composed.network, 3000) as pages:
        url = URL.create("postgresql+psycopg", "ticketflow", PASSWORD, "127.0.0.1", server, "ticketflow")
        engine = connect_engine(url, "containers")
        try:
            yield Office(composed, f"http://127.0.0.1:{pages}", engine)
        finally:
            engine.dispose()


def test_the_image_is_of_nobody_and_keeps_nothing_of_its_build(built: dict[str, str]) -> None:
    image = built["TICKETFLOW_IMAGE"]
    assert podman("image", "inspect", "--format={{.User}}", image).strip() == "10001:10001"
    shell = ["run", "--rm", "--network=none", "--read-only", "--entrypoint=/bin/sh", image, "-c"]
    left = podman(*shell, "ls -d /build /run/secrets/pip /etc/pip.conf /opt/ticketflow/bin/pip 2>/dev/null; true")
    assert left == ""
    # Else every host that runs the image would be one machine.
    assert podman(*shell, "cat /etc/machine-id") == ""
    assert "index" not in podman("history", "--no-trunc", image)
    assert int(podman("image", "inspect", "--format={{.Size}}", image)) < 900 * 2**20


def test_a_second_build_makes_the_same_layers(built: dict[str, str]) -> None:
    again = images.build("--no-cache", image="localhost/ticketflow:again")
    layers = [
        podman("image", "inspect", "--format={{json .RootFS.Layers}}", image)
        for image in (built["TICKETFLOW_IMAGE"], again)
    ]
    podman("rmi", again)
    assert layers[0] == layers[1]


def test_three_months_are_settled_as_without_containers_while_each_of_them_is_killed(
    office: Office, engine: Engine
) -> None:
    composed = office.composed
    for each in (office.engine, engine):
        load_demo(each, MONTHS[-1], len(MONTHS), ORGANIZATIONS)
    for month in MONTHS:
        settle(engine, month, now=instant(NOW))
    watched = [name for name, said in composed.document["services"].items() if "healthcheck" in said]
    for service in watched:
        composed.wait_for(lambda service=service: composed.is_healthy(service), f"the health of {service}")
    parameters = {
        "assetSelection": [{"path": ["monthly_settlement"]}], "partitionNames": [str(month) for month in MONTHS]
    }  # fmt: skip
    launched = _patiently(office, lambda: office.ask(LAUNCH_BACKFILL, parameters=parameters)["launchPartitionBackfill"])
    assert launched["__typename"] == "LaunchBackfillSuccess", launched

    for number, service in enumerate(("daemon", "webserver", "code-server", "relay", "postgres"), start=1):
        composed.wait_for(lambda number=number: office.count(DONE) >= 3 * number, f"chunks before {service} is killed")
        assert office.count(DUE) > 0, "all is settled before the last container is killed"
        before = composed.inspect(service, ".State.Pid")
        composed.kill(service)
        composed.wait_for(lambda b=before, s=service: _is_new(composed, s, b), f"{service} to be started again")

    composed.wait_for(lambda: office.count(SETTLED) == len(MONTHS), "three settled months", 600)
    runs = composed.wait_for(lambda: _ended(office, launched["backfillId"]), "the end of all runs")
    assert {run["status"] for run in runs} <= set(FINISHED)
    assert _ledger(office.engine) == _ledger(engine)
    composed.wait_for(lambda: office.count(UNDELIVERED) == 0, "what is due for delivery")
    lines = (composed.volume("home") / "outbox.jsonl").read_text("utf-8").splitlines()
    with office.engine.connect() as connection:
        settled = connection.execute(text("SELECT aggregate_id FROM outbox_event WHERE event_type = 'MonthSettled'"))
        assert sorted(settled.scalars()) == [str(month) for month in MONTHS]
    # What was on its way when a relay was killed may come again, in the same words and under the same id.
    written = {line["event_id"]: line for line in map(json.loads, lines)}
    assert len(written) == office.count(DELIVERED)
    for line in map(json.loads, lines):
        assert {**line, "attempt": 0} == {**written[line["event_id"]], "attempt": 0}
    assert sum(line["event_type"] == "MonthSettled" for line in written.values()) == len(MONTHS)
    for service in watched:
        composed.wait_for(lambda service=service: composed.is_healthy(service), f"the health of {service} in the end")


def test_a_process_that_hangs_is_not_healthy(office: Office) -> None:
    for service in ("webserver", "code-server", "relay"):
        office.composed.wait_for(lambda s=service: office.composed.is_healthy(s), f"the health of {service}")
        # The first process is the init; its child is what is asked after.
        init = int(office.composed.inspect(service, ".State.Pid"))
        [child] = Path(f"/proc/{init}/task/{init}/children").read_text().split()
        os.kill(int(child), signal.SIGSTOP)
        try:
            office.composed.wait_for(lambda s=service: not office.composed.is_healthy(s), f"{service} to be ill", 90)
        finally:
            os.kill(int(child), signal.SIGCONT)


def _is_new(composed: Composition, service: str, before: str) -> bool:
    return composed.inspect(service, ".State.Pid") not in {"0", before}


def _patiently(office: Office, act: Callable[[], Any]) -> Any:
    def tried() -> Any:
        with suppress(OSError):
            return act()
        return None

    return office.composed.wait_for(tried, "the web pages")


def _ended(office: Office, backfill: str) -> list[dict[str, Any]] | None:
    wanted = [{"key": "dagster/backfill", "value": backfill}]
    runs = _patiently(office, lambda: office.ask(RUNS, filter={"tags": wanted}))["runsOrError"]["results"]
    return runs if all(run["status"] in FINISHED for run in runs) else None


def _ledger(engine: Engine) -> list[tuple[Any, ...]]:
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text(LEDGER))]


LEDGER = """
    SELECT external_ref, ledger_entry.month, ledger_entry.currency, sequence, captures, refunds, chargebacks,
        commission, ledger_entry.commission_tax, net
    FROM ledger_entry JOIN organization ON organization.id = organization_id ORDER BY 1, 2, 3, 4
"""
DONE = "SELECT count(*) FROM settlement_chunk WHERE state = 'DONE'"
DUE = "SELECT 3 - count(*) FROM settlement_period WHERE state <> 'OPEN'"
SETTLED = "SELECT count(*) FROM settlement_period WHERE state <> 'OPEN'"
UNDELIVERED = "SELECT count(*) FROM outbox_event WHERE state IN ('PENDING', 'INFLIGHT')"
DELIVERED = "SELECT count(*) FROM outbox_event WHERE state = 'DELIVERED'"
