"""The commands for operators: what they print, what they refuse, and with which exit code."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance
from dagster._daemon.types import DaemonHeartbeat
from sqlalchemy import Engine, text
from sqlalchemy.engine import URL
from typer.testing import CliRunner

from tests.conftest import run_sql
from tests.support.commands import lines, refusal
from tests.support.homes import MIGRATING, fresh_home, variables_for
from tests.support.ports import free_port
from tests.support.rows import add_event, add_movement, add_organization, add_reservation, instant
from tests.support.sql_statements import execute
from ticketflow_orch import cli
from ticketflow_orch.clock import now
from ticketflow_orch.dagster_host.instance import running
from ticketflow_orch.jobs.firings import Firing
from ticketflow_orch.jobs.run_once import run_once
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.settings import read_settings
from ticketflow_orch.ticketing.lifecycle import LifecycleRules
from ticketflow_orch.ticketing.reservations import expire_reservations


@pytest.fixture
def home(server: EmbeddedServer, scratch: Path, url: URL) -> Iterator[Path]:
    """A home on a running server with a migrated database; Dagster's is not there yet."""
    storage = server.url(f"{url.database}_dagster")
    with fresh_home(scratch, **variables_for(url, storage)) as home:
        yield home
    run_sql(server.url(), f"DROP DATABASE IF EXISTS {storage.database} WITH (FORCE)")


def add_stuck(engine: Engine, **values: Any) -> int:
    """A reservation with a stuck payment; returns its organization."""
    organization = add_organization(engine)
    evening = add_event(engine, organization, external_ref="concert", ends_at=instant("2027-01-01T00:00"))
    add_reservation(engine, evening, payment_started_at=instant("2026-05-01T10:14"), **values)
    expire_reservations(engine, LifecycleRules(instant("2026-06-02T00:00"), "run"))
    return organization


def test_a_stuck_payment_is_listed_and_resolved(engine: Engine, home: Path) -> None:
    add_stuck(engine, public_ref="R-1")
    listed = lines("reservations", "stuck")
    assert listed[1].split()[:3] == ["R-1", "concert", "2"]
    assert "not seen" in listed[1]
    assert lines("reservations", "resolve", "R-1", "--expire") == ["R-1 is expired, and its seats are released."]
    assert lines("reservations", "stuck") == ["No payment is stuck."]
    with engine.connect() as connection:
        by = connection.execute(text("SELECT expired_by FROM reservation")).scalar_one()
    assert by.startswith("by hand: ")


def test_money_that_nobody_confirmed_is_listed_and_gets_its_ticket(engine: Engine, home: Path) -> None:
    organization = add_organization(engine)
    evening = add_event(engine, organization, external_ref="concert", ends_at=instant("2027-01-01T00:00"))
    held = add_reservation(engine, evening, public_ref="R-1")
    add_movement(engine, organization, 100, "2026-05-01T10:14", reservation_id=held, external_ref="capture-1")
    expire_reservations(engine, LifecycleRules(instant("2026-06-02T00:00"), "run"))
    _, line = lines("reservations", "stuck")
    assert line.split() == ["R-1", "concert", "2", "2026-06-02", "00:00:00", "came", "in", "--confirm"]
    assert "has the capture 'capture-1'" in refusal("reservations", "resolve", "R-1", "--expire")
    assert lines("reservations", "resolve", "R-1", "--confirm") == ["R-1 is confirmed."]
    assert lines("reservations", "stuck") == ["No payment is stuck."]


def test_a_resolution_is_one_of_two_and_for_stuck_payments_only(engine: Engine, home: Path) -> None:
    add_stuck(engine, public_ref="R-1")
    assert "--confirm or --expire" in refusal("reservations", "resolve", "R-1")
    assert "--confirm or --expire" in refusal("reservations", "resolve", "R-1", "--confirm", "--expire")
    assert lines("reservations", "resolve", "R-1", "--confirm") == ["R-1 is confirmed."]
    assert "is not stuck" in refusal("reservations", "resolve", "R-1", "--confirm")


def test_money_without_a_ticket_is_listed_with_its_amount(engine: Engine, home: Path) -> None:
    assert lines("reservations", "unticketed") == ["All money has its ticket."]
    organization = add_organization(engine)
    held = add_reservation(engine, add_event(engine, organization), public_ref="R-1")
    expire_reservations(engine, LifecycleRules(instant("2026-06-02T00:00"), "run"))
    add_movement(engine, organization, 123_456, "2026-06-02T05:00", reservation_id=held, external_ref="capture-1")
    assert lines("reservations", "unticketed")[1].split()[2:] == ["capture-1", "1,234.56", "EUR", "R-1", "EXPIRED"]


def test_claims_are_listed_by_job_and_state_and_released(engine: Engine, home: Path) -> None:
    assert lines("claims", "list") == ["There is no claim."]
    run_once(engine, Firing("close_events", instant("2026-06-01T02:30"), "run"), dict)
    key = "2026-06-01T02:31:00+00:00"
    execute(
        engine,
        """
        INSERT INTO job_execution (job, idempotency_key, state, owner, lease_until)
        VALUES ('expire_reservations', :key, 'PROCESSING', 'host/1/word', now() - interval '1 minute')
        """,
        key=key,
    )
    assert len(lines("claims", "list")) == 3
    assert [line.split()[0] for line in lines("claims", "list", "--job", "close_events")[1:]] == ["close_events"]
    assert lines("claims", "list", "--stale")[1].split()[:3] == ["expire_reservations", key, "PROCESSING"]
    assert lines("claims", "list", "--stale", "--job", "close_events") == ["No claim is stale."]

    assert lines("claims", "release", "expire_reservations", key)[0].startswith(
        f"The claim (expire_reservations, {key})"
    )
    assert lines("claims", "list", "--stale") == ["No claim is stale."]
    assert "is being processed" in refusal("claims", "release", "expire_reservations", key)


def test_effects_are_a_table_or_lines_of_json(engine: Engine, home: Path) -> None:
    add_stuck(engine, public_ref="R-[1]")
    head, line = lines("effects", "--reservation", "R-[1]")
    assert head.split() == ["at", "(UTC)", "who", "what", "state", "key"]
    assert line.split()[:3] == ["2026-06-02", "00:00:00", "R-[1]"]
    [line] = lines("effects", "--event", "concert", "--json")
    effect = json.loads(line)
    assert effect["at"] == "2026-06-02T00:00:00+00:00"
    assert effect["key"].startswith("ReservationPaymentStuck:R-[1]:2026-")
    assert len(effect["event_id"]) == 36


def test_effects_are_those_of_one_thing(home: Path) -> None:
    assert refusal("effects").startswith("Name one of --reservation, --event and --organization")
    assert refusal("effects", "--event", "a", "--reservation", "b").startswith("Name one of")


@pytest.mark.parametrize(
    "command",
    [
        ("outbox", "list"),
        ("outbox", "stops"),
        ("claims", "list"),
        ("reservations", "stuck"),
        ("reservations", "unticketed"),
        ("payouts", "list"),
    ],
)
def test_a_list_for_programs_is_a_json_object_a_line_and_nothing_where_nothing_is(
    engine: Engine, home: Path, command: tuple[str, ...]
) -> None:
    assert lines(*command, "--json") == []


def test_what_is_listed_for_programs_has_the_names_and_values_of_the_database(engine: Engine, home: Path) -> None:
    add_stuck(engine, public_ref="R-1")
    run_once(engine, Firing("close_events", instant("2026-06-01T02:30"), "run"), dict)
    [payment] = map(json.loads, lines("reservations", "stuck", "--json"))
    assert (payment["reservation"], payment["payment_started_at"]) == ("R-1", "2026-05-01T10:14:00+00:00")
    [claim] = map(json.loads, lines("claims", "list", "--json"))
    assert (claim["job"], claim["state"], claim["lease_until"]) == ("close_events", "COMPLETED", None)
    [waiting] = map(json.loads, lines("outbox", "list", "--json"))
    assert (waiting["event_type"], waiting["state"]) == ("ReservationPaymentStuck", "PENDING")


def test_the_work_of_a_schedule_is_told_or_done_by_hand_and_then_listed(engine: Engine, home: Path) -> None:
    evening = add_event(
        engine,
        add_organization(engine),
        external_ref="over",
        starts_at=instant("2026-05-31T20:00"),
        ends_at=instant("2026-06-01T00:00"),
    )
    add_reservation(engine, evening, public_ref="due", expires_at=instant("2026-05-01T10:15"))
    assert lines("work", "expire", "--dry-run") == [
        "1 reservation would be expired, 0 payments reported as stuck.",
        "The first: due.",
    ]
    assert lines("work", "close", "--dry-run")[0] == "1 event would be closed, and 1 reservation of theirs expired."
    assert lines("work", "remind", "--dry-run") == ["24h: 0 reservations would be decided about."]
    assert lines("claims", "list") == ["There is no claim."]
    assert lines("work", "expire") == ["expire_reservations: 1 reservations, 0 stuck, 0 left."]
    assert lines("work", "close") == ["close_events: 1 events, 0 reservations expired, 0 left."]
    assert lines("work", "remind")[0].startswith("send_reminders: 0 queued, 0 skipped")
    assert len(lines("claims", "list", "--json")) == 3


def test_health_for_programs_is_one_json_object(home: Path) -> None:
    result = CliRunner().invoke(cli.app, ["health", "--json"])
    printed = json.loads(result.output)
    assert (result.exit_code, printed["ok"]) == (1, False)
    assert [line.partition(":")[0] for line in printed["problems"]] == ["dagster"]


def test_metrics_are_printed_or_written_whole(home: Path, tmp_path: Path) -> None:
    printed = lines("metrics")
    file = tmp_path / "ticketflow.prom"
    assert lines("metrics", "--textfile", str(file)) == []
    assert [path.name for path in tmp_path.iterdir()] == ["ticketflow.prom"]
    names = {line.partition(" ")[0] for line in file.read_text().splitlines() if not line.startswith("#")}
    assert names == {line.partition(" ")[0] for line in printed if not line.startswith("#")}
    assert "ticketflow_months_unsettled" in names
    assert "cannot be written" in refusal("metrics", "--textfile", "/nowhere/ticketflow.prom")
    assert "not both" in refusal("metrics", "--textfile", "any", "--serve", "9999")


def test_metrics_are_served_on_this_machine_until_a_signal(home: Path) -> None:
    port = free_port()
    command = [sys.executable, "-c", "from ticketflow_orch.cli import main; main()", "metrics", "--serve", str(port)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ.copy()) as process:
        assert process.stderr is not None
        assert f"http://127.0.0.1:{port}/metrics" in process.stderr.readline()
        for _ in range(2):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            connection.request("GET", "/metrics")
            assert b"ticketflow_clock_difference_seconds" in connection.getresponse().read()
            connection.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0


def test_a_file_of_metrics_says_that_the_database_is_away(
    server: EmbeddedServer, scratch: Path, tmp_path: Path
) -> None:
    file = tmp_path / "ticketflow.prom"
    with fresh_home(scratch, **variables_for(server.url("absent"), server.url("absent_too"))):
        assert "absent" in refusal("metrics", "--textfile", str(file))
    assert [line for line in file.read_text().splitlines() if not line.startswith("#")] == ["ticketflow_up 0.0"]


def health() -> tuple[int, list[str]]:
    result = CliRunner().invoke(cli.app, ["health"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output.splitlines()


def test_health_names_a_daemon_that_is_silent_and_a_window_that_was_missed(engine: Engine, home: Path) -> None:
    with running(read_settings(), asked=MIGRATING):
        assert health() == (
            1,
            ["daemon: was never seen; no schedule runs without it; start it with `ticketflow ui`."],
        )
        # From the first firing on record each window is expected to have one.
        run_once(engine, Firing("send_reminders", now(), "run"), dict)
        execute(engine, "UPDATE job_firing SET fired_at = now() - interval '30 hours'")
        code, lines = health()
    assert code == 1
    missed = {line.partition(":")[0] for line in lines if "was never started" in line}
    assert missed == {"close_events", "housekeeping"}


def test_health_is_ok_where_nothing_is_wrong(engine: Engine, home: Path) -> None:
    with running(read_settings(), asked=MIGRATING), DagsterInstance.get() as instance:
        for kind in instance.get_required_daemon_types():
            instance.add_daemon_heartbeat(DaemonHeartbeat(time.time(), kind, "this one", []))
        assert health() == (0, ["ok"])


def test_health_says_so_when_nothing_can_be_reached(server: EmbeddedServer, scratch: Path) -> None:
    variables = variables_for(server.url("absent"), server.url("absent_too"))
    with fresh_home(scratch, **variables):
        code, lines = health()
    assert code == 1
    assert [line.partition(":")[0] for line in lines] == ["database", "dagster"]


def test_health_says_so_when_the_schema_or_the_instance_is_not_this_versions(
    engine: Engine, home: Path, server: EmbeddedServer, url: URL
) -> None:
    run_sql(server.url(), f"CREATE DATABASE {url.database}_dagster")
    execute(engine, "UPDATE alembic_version SET version_num = '0001'")
    code, lines = health()
    assert code == 1
    assert [line.partition(":")[0] for line in lines] == ["schema", "dagster"]
    assert "run `ticketflow migrate`" in lines[1]


def test_health_tells_what_a_question_could_not_read_among_all_else(engine: Engine, home: Path) -> None:
    add_organization(engine, external_ref="hall-7", timezone="UTC+2")
    event = add_event(engine, add_organization(engine), ends_at=instant("2036-06-01T20:00"))
    add_reservation(engine, event, expires_at=instant("2026-05-01T10:15"))
    execute(engine, "ALTER TABLE reservation DROP CONSTRAINT reservation_instants_check")
    execute(engine, "UPDATE reservation SET expires_at = '-infinity'")
    code, lines = health()
    assert code == 1
    assert lines[0].startswith("data: a question had no answer: timestamp too small")
    why = "Time zone 'UTC+2' is unknown to tzdata; use an IANA name such as 'Europe/Madrid'."
    assert lines[1] == f"data: organization hall-7: {why}"
    assert lines[2].startswith("dagster:")


def test_health_names_what_a_lock_keeps_it_from_knowing(
    engine: Engine, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ticketflow_orch.monitoring.snapshot._LONGEST_QUESTION", 0.1)
    with engine.connect() as holding:
        holding.execute(text("LOCK TABLE outbox_event"))
        code, lines = health()
    assert code == 1
    [line] = [line for line in lines if line.startswith("database: a question had no answer (canceling statement")]
    unknown = line.partition("nothing is known of ")[2].partition(";")[0].split(", ")
    assert {"delivered", "disagreements", "latencies", "obstacles", "outbox"} <= set(unknown)


def test_health_names_a_pool_that_somebody_paused(engine: Engine, home: Path) -> None:
    with running(read_settings(), asked=MIGRATING), DagsterInstance.get() as instance:
        instance.event_log_storage.set_concurrency_slots("payouts", 0)
        lines = health()[1]
    assert "pools: paused by a limit of 0: payouts; set it to 1 in the UI: Deployment, Concurrency." in lines


def test_health_names_a_disk_that_is_nearly_full(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ticketflow_orch.cli.doctor_findings._LEAST_FREE", 1 << 60)
    assert any(line.startswith("disk: ") and line.endswith("; make room.") for line in health()[1])
