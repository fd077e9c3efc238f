"""The whole back office as people run it, and the language that its web pages speak to it."""

from __future__ import annotations

import json
import os
import re
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
from sqlalchemy import Engine

from tests.support.ports import free_port
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.local.postgres import EmbeddedServer

BIN = Path(sys.executable).parent
ASSET = "monthly_settlement"
UNDER_WAY = ("STARTING", "STARTED", "CANCELING")
FINISHED = ("SUCCESS", "FAILURE", "CANCELED")
# Generous: a run costs seconds, but the machine may be busy, and a backfill may wait half a minute for its daemon.
PATIENCE = 180.0


@dataclass(frozen=True, slots=True)
class Run:
    """A run as the web pages show it; times in seconds since the epoch, None before it starts or ends."""

    id: str
    status: str
    tags: Mapping[str, str]
    started: float | None
    ended: float | None

    @property
    def month(self) -> str:
        return self.tags["dagster/partition"]


@dataclass(frozen=True, slots=True)
class Backfill:
    """A backfill whose runs have ended, in the order of their start, and the months that were seen in runs at once.

    `requested` is the instant of the request, in seconds since the epoch.
    """

    requested: float
    runs: list[Run]
    at_once: list[list[str]]

    def run(self, month: str) -> Run:
        """The run of one of its months."""
        return next(run for run in self.runs if run.month == month)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a backfill costs beyond the work itself, in seconds.

    `start` passes from the request to the first step of the first run, `month` is what each month takes from then on
    beyond its own settlement: waiting for its turn, the start of a process, the checks, Dagster's bookkeeping.
    """

    start: float
    month: float

    def __str__(self) -> str:
        return f"{self.start:.1f} s from request to first step, {self.month:.2f} s a month beyond the settlement itself"


@dataclass(frozen=True)
class BackOffice:
    """A running `ticketflow ui`: its process, its address, its home, its business database."""

    process: psutil.Popen
    address: str
    home: Path
    environment: Mapping[str, str]
    engine: Engine

    def ask(self, query: str, **variables: Any) -> Any:
        """The data that a GraphQL query gives; `variables` are its own."""
        request = urllib.request.Request(
            f"{self.address}/graphql",
            json.dumps({"query": query, "variables": variables}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            answer = json.load(response)
        assert "errors" not in answer, answer["errors"]
        return answer["data"]

    def backfill(self, months: Sequence[str]) -> Backfill:
        """Backfill the settlement as the asset's page does, until a run of each month has ended."""
        parameters = {"assetSelection": [{"path": [ASSET]}], "partitionNames": list(months)}
        requested = time.time()
        launched = self.ask(LAUNCH_BACKFILL, parameters=parameters)["launchPartitionBackfill"]
        assert launched["__typename"] == "LaunchBackfillSuccess", launched
        at_once = []

        def ended() -> list[Run] | None:
            runs = self.runs(dagster_backfill=launched["backfillId"])
            at_once.append([run.month for run in runs if run.status in UNDER_WAY])
            return runs if {run.month for run in runs if run.status in FINISHED} == set(months) else None

        runs = self.wait_for(ended, f"the backfill of {months}")
        return Backfill(requested, sorted(runs, key=lambda run: run.started or 0), at_once)

    def cost(self, backfill: Backfill) -> Cost:
        """What a backfill cost beyond the settlements that it is about."""
        steps = [event for event in self.events(backfill.runs[0].id) if event["eventType"] == "STEP_START"]
        started = float(steps[0]["timestamp"]) / 1000
        settled = [self.metadata(run.month) for run in backfill.runs]
        settling = sum(metadata["seconds"]["floatValue"] for metadata in settled if metadata)
        ended = max(run.ended or 0 for run in backfill.runs)
        return Cost(started - backfill.requested, (ended - started - settling) / len(backfill.runs))

    def materialize(self, month: str, **config: Any) -> str:
        """Launch the settlement of one month as the asset's page does; returns the run's id."""
        parameters = {
            "selector": {
                "pipelineName": "__ASSET_JOB",
                "repositoryName": "__repository__",
                "repositoryLocationName": "ticketflow",
                "assetSelection": [{"path": [ASSET]}],
            },
            "runConfigData": {"ops": {ASSET: {"config": config}}},
            "executionMetadata": {"tags": [{"key": "dagster/partition", "value": month}]},
        }
        return _launched(self.ask(LAUNCH_RUN, parameters=parameters)["launchPipelineExecution"])

    def launch(self, job: str, tags: Mapping[str, str] = MappingProxyType({})) -> str:
        """Launch a job as the launchpad does; returns the run's id."""
        parameters = {
            "selector": {
                "pipelineName": job,
                "repositoryName": "__repository__",
                "repositoryLocationName": "ticketflow",
            },
            "runConfigData": {},
            "executionMetadata": {"tags": [{"key": key, "value": value} for key, value in tags.items()]},
        }
        return _launched(self.ask(LAUNCH_RUN, parameters=parameters)["launchPipelineExecution"])

    def execute_again(self, run_id: str) -> str:
        """Launch a run again, as the button on its page does; returns the new run's id."""
        parameters = {"parentRunId": run_id, "strategy": "ALL_STEPS"}
        return _launched(self.ask(LAUNCH_AGAIN, parameters=parameters)["launchPipelineReexecution"])

    def stop_schedule(self, name: str) -> None:
        """Switch a schedule off, as its switch on the schedules' page does."""
        selector = {"scheduleName": name, "repositoryName": "__repository__", "repositoryLocationName": "ticketflow"}
        schedule = self.ask(SCHEDULE, selector=selector)["scheduleOrError"]
        stopped = self.ask(STOP_SCHEDULE, id=schedule["id"])["stopRunningSchedule"]
        assert stopped["__typename"] == "ScheduleStateResult", stopped

    def leave_to_people(self, *wanted: str) -> None:
        """Switch off what would do or watch anything by itself, but for the relay and the jobs of days and minutes.

        And but for the sensors that are `wanted`.

        The hours of what settles, closes, pays and states months may come while the office is open. What sensors say
        nobody reads, and each look costs.
        """
        for schedule in ("settlement_schedule", "close_books_schedule", "payouts_schedule", "statements_schedule"):
            self.stop_schedule(schedule)
        repository = {"repositoryName": "__repository__", "repositoryLocationName": "ticketflow"}
        for sensor in self.ask(SENSORS, repository=repository)["sensorsOrError"]["results"]:
            if sensor["name"] not in {"outbox_relay", *wanted}:
                stopped = self.ask(STOP_SENSOR, id=sensor["id"])["stopSensor"]
                assert stopped["__typename"] == "StopSensorMutationResult", stopped

    def runs(self, **tags: str) -> list[Run]:
        """The runs that carry all of `tags` (the first `_` stands for `/`), newest first."""
        wanted = [{"key": name.replace("_", "/", 1), "value": value} for name, value in tags.items()]
        found = self.ask(RUNS, filter={"tags": wanted})["runsOrError"]["results"]
        return [_run(run) for run in found]

    def run(self, run_id: str) -> Run:
        return _run(self.ask(RUN, id=run_id)["runOrError"])

    def wait_for_run(self, run_id: str) -> Run:
        """The run, once it has ended."""
        return self.wait_for(lambda: run if (run := self.run(run_id)).status in FINISHED else None, f"run {run_id}")

    def events(self, run_id: str) -> list[dict[str, Any]]:
        """The events of a run: `eventType`, `message`, `timestamp` (milliseconds since the epoch, as text)."""
        return list(self.ask(EVENTS, id=run_id)["logsForRun"]["events"])

    def said(self, run_id: str) -> str:
        """All that a run's log says, a line an event."""
        return "\n".join(str(event["message"]) for event in self.events(run_id) if event.get("message"))

    def failure(self, run_id: str) -> str:
        """What a failed run says to people: the description of its step's failure."""
        return " ".join(
            event["failureMetadata"]["description"] for event in self.events(run_id) if event.get("failureMetadata")
        )

    def metadata(self, month: str | None, asset: str = ASSET) -> dict[str, dict[str, Any]]:
        """The metadata entries of a month's latest materialization, by label; none when there is none.

        Without a month, of the asset's.
        """
        months = [month] if month else None
        found = self.ask(MATERIALIZATION, key={"path": [asset]}, months=months)["assetOrError"]
        latest = found.get("assetMaterializations", [])[:1]
        return {entry["label"]: entry for node in latest for entry in node["metadataEntries"]}

    def wait_for(self, look: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
        """What `look` returns once it is something; fails after `patience` seconds, with what the processes said."""
        deadline = time.monotonic() + patience
        while True:
            began = time.monotonic()
            if seen := look():
                return seen
            assert self.process.poll() is None, f"`ticketflow ui` has ended:\n{self.last_words()}"
            assert began < deadline, f"waited {patience:g} s for {what}, which did not come:\n{self.last_words()}"
            # A look is a query of the web server or a command, which work beside what is waited for.
            time.sleep(max(0.5, 2 * (time.monotonic() - began)))

    def last_words(self) -> str:
        """The ends of all logs."""
        return "\n".join(
            f"--- {log.name}\n" + "\n".join(log.read_text("utf-8", errors="replace").splitlines()[-15:])
            for log in sorted((self.home / "logs").glob("*.log"))
        )


def bare_environment(home: Path) -> dict[str, str]:
    """The variables of a process that works in `home`; of ours, no others."""
    ours = ("TICKETFLOW_", "DAGSTER_")
    bare = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return bare | {"TICKETFLOW_HOME": str(home)}


@contextmanager
def opened(home: Path, **variables: str) -> Iterator[BackOffice]:
    """`ticketflow ui` in `home`, ready to be used; ended, with its Postgres, when the block ends, however it ends."""
    port = free_port()
    logs = home / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    environment = bare_environment(home) | variables
    with (logs / "ui.log").open("wb") as output:
        process = psutil.Popen(
            [BIN / "ticketflow", "ui", "--port", str(port)], cwd=home, env=environment, stdout=output, stderr=output
        )
    server = EmbeddedServer(home)
    engine = connect_engine(server.url("ticketflow"), "end to end")
    office = BackOffice(process, f"http://127.0.0.1:{port}", home, environment, engine)
    services: list[psutil.Process] = []
    try:
        office.wait_for(lambda: "TicketFlow is at" in (logs / "ui.log").read_text("utf-8"), "`ticketflow ui`")
        services = process.children()
        yield office
    finally:
        engine.dispose()
        _end(process, services)
        server.stop("immediate")


def _end(process: psutil.Popen, services: Sequence[psutil.Process]) -> None:
    """As Ctrl-C does; what is left of it is killed, also where it had ended by itself and left its services behind."""
    if process.poll() is None:
        services = process.children(recursive=True)
        process.terminate()
    _, alive = psutil.wait_procs([process, *services], timeout=30)
    for survivor in alive:
        survivor.kill()


def _launched(answer: Mapping[str, Any]) -> str:
    assert answer["__typename"] == "LaunchRunSuccess", answer
    return str(answer["run"]["runId"])


def _run(node: Mapping[str, Any]) -> Run:
    tags = {tag["key"]: tag["value"] for tag in node["tags"]}
    return Run(node["runId"], node["status"], tags, node["startTime"], node["endTime"])


LAUNCH_BACKFILL = """
mutation ($parameters: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $parameters) {
    __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message }
  }
}
"""

_LAUNCHED = "{ __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } }"

LAUNCH_RUN = f"""
mutation ($parameters: ExecutionParams!) {{ launchPipelineExecution(executionParams: $parameters) {_LAUNCHED} }}
"""

LAUNCH_AGAIN = f"""
mutation ($parameters: ReexecutionParams!) {{
  launchPipelineReexecution(reexecutionParams: $parameters) {_LAUNCHED}
}}
"""

SCHEDULE = """
query ($selector: ScheduleSelector!) { scheduleOrError(scheduleSelector: $selector) { ... on Schedule { id } } }
"""

STOP_SCHEDULE = """
mutation ($id: String!) {
  stopRunningSchedule(id: $id) { __typename ... on PythonError { message } }
}
"""

SENSORS = """
query ($repository: RepositorySelector!) {
  sensorsOrError(repositorySelector: $repository) { ... on Sensors { results { id name } } }
}
"""

STOP_SENSOR = """
mutation ($id: String!) { stopSensor(id: $id) { __typename ... on PythonError { message } } }
"""

_RUN = "{ runId status startTime endTime tags { key value } }"

RUNS = f"query ($filter: RunsFilter!) {{ runsOrError(filter: $filter) {{ ... on Runs {{ results {_RUN} }} }} }}"

RUN = f"query ($id: ID!) {{ runOrError(runId: $id) {{ ... on Run {_RUN} }} }}"

EVENTS = """
query ($id: ID!) {
  logsForRun(runId: $id) {
    ... on EventConnection {
      events {
        ... on MessageEvent { eventType message timestamp }
        ... on ExecutionStepFailureEvent { failureMetadata { description } error { message causes { message stack } } }
      }
    }
  }
}
"""

MATERIALIZATION = """
query ($key: AssetKeyInput!, $months: [String!]) {
  assetOrError(assetKey: $key) {
    ... on Asset {
      assetMaterializations(partitions: $months, limit: 1) {
        metadataEntries {
          __typename label
          ... on IntMetadataEntry { intValue }
          ... on FloatMetadataEntry { floatValue }
          ... on TextMetadataEntry { text }
          ... on MarkdownMetadataEntry { mdStr }
          ... on TableMetadataEntry { table { records } }
        }
      }
    }
  }
}
"""


def worker_of(office: BackOffice, run_id: str) -> psutil.Process | None:
    """The process that executes a run, once the run's log names it; one that `ticketflow ui` started."""
    log = " ".join(event["message"] for event in office.events(run_id))
    named = re.search(r"Started process for run \(pid: (\d+)\)", log)
    if named is None:
        return None
    return next(child for child in office.process.children(recursive=True) if child.pid == int(named[1]))
