"""One daemon works on an instance: a second is refused where it is started with ours, and named wherever it was."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from dagster import DagsterInstance
from dagster._daemon.types import DaemonHeartbeat
from dagster_shared.error import SerializableErrorInfo
from sqlalchemy import Engine, text
from sqlalchemy.engine import URL

from tests.support.homes import bootstrapped, dagster_storage
from ticketflow_orch.cli import ui
from ticketflow_orch.cli.dagster_state import daemon
from ticketflow_orch.cli.findings import State
from ticketflow_orch.dagster_host import daemons
from ticketflow_orch.dagster_host.daemons import leave_mark, two_daemons, working_daemons
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.local.databases import Databases, resolve
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.local.process_identity import ProcessIdentity
from ticketflow_orch.settings import read_settings

HERE = ProcessIdentity.of(os.getpid())
ENDED = replace(HERE, started="1")
ELSEWHERE = replace(HERE, host="elsewhere", machine="another", boot="another")


@pytest.fixture
def instance(server: EmbeddedServer, url: URL, scratch: Path) -> Iterator[DagsterInstance]:
    with dagster_storage(server, url) as storage, bootstrapped(scratch, url, storage) as instance:
        yield instance


@pytest.fixture
def databases(instance: DagsterInstance) -> Databases:
    return resolve(read_settings())


@pytest.fixture
def storage(databases: Databases) -> Iterator[Engine]:
    """Dagster's storage, as we look into it."""
    engine = connect_engine(databases.dagster, "pytest", connections=2)
    yield engine
    engine.dispose()


def mark(storage: Engine, daemon_id: str, process: ProcessIdentity, *, began: float = 0, ended: float = 0) -> None:
    """Leave a daemon's mark, from `began` until `ended` seconds ago."""
    with storage.begin() as connection:
        leave_mark(connection, daemon_id, process)
        connection.execute(
            text("""
                UPDATE kvs SET value = value::jsonb || jsonb_build_object(
                    'first', (value::jsonb ->> 'first')::float8 - CAST(:began AS float8),
                    'last', (value::jsonb ->> 'last')::float8 - CAST(:ended AS float8)
                ) WHERE key = 'ticketflow/daemon/' || CAST(:id AS text)
            """),
            {"id": daemon_id, "began": began, "ended": ended},
        )


def said(storage: Engine) -> str | None:
    with storage.connect() as connection:
        return two_daemons(working_daemons(connection))


def test_a_daemon_leaves_a_mark_with_its_heartbeats_which_is_forgotten_after_a_day(
    instance: DagsterInstance, storage: Engine
) -> None:
    mark(storage, "of last week", HERE, began=500_000, ended=400_000)
    for kind in ("SENSOR", "SCHEDULER"):
        instance.add_daemon_heartbeat(DaemonHeartbeat(1.0, kind, "mine", []))
    with storage.connect() as connection:
        [mine] = working_daemons(connection)
        assert connection.execute(text("SELECT count(*) FROM kvs WHERE key LIKE 'ticketflow/%'")).scalar_one() == 1
    assert (mine.id, mine.process) == ("mine", HERE)
    assert mine.first == mine.last
    assert mine.age < 10


def test_two_daemons_that_work_at_once_are_named_by_doctor_and_health(
    instance: DagsterInstance, storage: Engine
) -> None:
    mark(storage, "one", HERE, began=300, ended=20)
    mark(storage, "other", ELSEWHERE, began=60, ended=5)
    names = f"process {os.getpid()} on {HERE.host}, process {os.getpid()} on elsewhere"
    assert said(storage) == (f"2 work at once and start every window twice ({', '.join(sorted(names.split(', ')))})")
    finding = daemon(instance)
    assert (finding.state, finding.detail) == (State.WRONG, said(storage))


def test_a_daemon_that_was_restarted_is_not_taken_for_two(storage: Engine) -> None:
    mark(storage, "before", ELSEWHERE, began=300, ended=40)
    mark(storage, "after", replace(ELSEWHERE, pid=7), began=30)
    assert said(storage) is None


@pytest.mark.parametrize(
    ("process", "ended"), [(ENDED, 0), (ELSEWHERE, 100)], ids=["its process is gone", "silent for long"]
)
def test_a_daemon_that_has_ended_is_not_counted(storage: Engine, process: ProcessIdentity, ended: float) -> None:
    mark(storage, "ended", process, began=300, ended=ended)
    mark(storage, "mine", HERE, began=300)
    assert said(storage) is None


def test_ui_refuses_to_start_a_second_daemon_beside_one_that_lives(storage: Engine, databases: Databases) -> None:
    mark(storage, "living", HERE, began=300, ended=20)
    with pytest.raises(
        TicketflowError, match=rf"already, process {os.getpid()} on .*, and two would start every schedule"
    ):
        ui._refuse_second_daemon(databases)


def test_ui_refuses_where_the_daemon_of_another_host_shows_that_it_still_works(
    storage: Engine, databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark(storage, "foreign", ELSEWHERE, began=300, ended=20)
    monkeypatch.setattr(ui.time, "sleep", lambda _: mark(storage, "foreign", ELSEWHERE))
    with pytest.raises(TicketflowError, match="on elsewhere, and two would start every schedule twice"):
        ui._refuse_second_daemon(databases)


def test_ui_starts_where_the_other_daemon_has_ended_or_does_not_show_any_more(
    storage: Engine, databases: Databases, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mark(storage, "killed here", ENDED)
    ui._refuse_second_daemon(databases)
    assert capsys.readouterr().err == ""

    mark(storage, "foreign", ELSEWHERE, began=300)
    monkeypatch.setattr(daemons, "BETWEEN_MARKS", 1.0)
    monkeypatch.setattr(ui, "_BETWEEN_LOOKS", 0.5)
    ui._refuse_second_daemon(databases)
    assert "on elsewhere; waiting to see whether it still does." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (SerializableErrorInfo("bad tick", [], "ValueError", None), State.WRONG),
        (SerializableErrorInfo("server closed the connection", [], "OperationalError", None), State.OK),
        (
            SerializableErrorInfo(
                "too many retries", [], "DagsterPostgresException",
                SerializableErrorInfo("connection refused", [], "OperationalError", None),
            ),
            State.OK,
        ),
    ],
    ids=["an error of its own", "cut off", "cut off for long"],
)  # fmt: skip
def test_a_part_that_was_cut_off_from_its_storage_is_well_once_it_shows_life_there(
    instance: DagsterInstance, error: SerializableErrorInfo, state: State
) -> None:
    for kind in instance.get_required_daemon_types():
        errors = [error] if kind == "SENSOR" else []
        instance.add_daemon_heartbeat(DaemonHeartbeat(time.time(), kind, "mine", errors))
    assert daemon(instance).state == state
