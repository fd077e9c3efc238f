"""A server of one's own is prepared by `ticketflow migrate` alone, and lends what it decided to other processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from dagster import DagsterInstance
from sqlalchemy import Engine, text
from sqlalchemy.engine import URL
from typer.testing import CliRunner

from tests.conftest import run_sql
from tests.support.homes import MIGRATING, fresh_home, variables_for
from tests.support.installed import decide
from tests.support.ports import free_port
from ticketflow_orch import cli
from ticketflow_orch.cli.ui import serve
from ticketflow_orch.dagster_host.instance import running
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.months import Month
from ticketflow_orch.settings import read_settings, settings

COMMANDS = [
    ["settle", "2026-03"],
    ["settle", "2026-03", "--dry-run"],
    ["close", "2026-03"],
    ["import", "."],
    ["status"],
    ["audit"],
    ["outbox", "deliver"],
    ["payouts", "list"],
    ["installation"],
    ["metrics"],
    ["demo"],
]


@pytest.fixture
def own(server: EmbeddedServer, scratch: Path, url: URL) -> Iterator[URL]:
    """A home on a server of one's own, whose databases a test prepares as it likes; Dagster's is empty."""
    storage = server.url(f"{url.database}_dagster")
    run_sql(server.url(), f"CREATE DATABASE {storage.database}")
    with fresh_home(scratch, **variables_for(url, storage)):
        yield url
    run_sql(server.url(), f"DROP DATABASE IF EXISTS {storage.database} WITH (FORCE)")


def refused(*arguments: str) -> str:
    """The sentence that a command is refused with."""
    result = CliRunner().invoke(cli.app, arguments)
    assert isinstance(result.exception, TicketflowError), (result.output, result.exception)
    return str(result.exception)


def tables(url: URL) -> int:
    engine = connect_engine(url, "pytest counts tables", connections=1)
    try:
        with engine.connect() as connection:
            return int(
                connection.execute(text("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'")).scalar_one()
            )
    finally:
        engine.dispose()


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_command_makes_tables_in_an_empty_database(own: URL, command: list[str]) -> None:
    run_sql(own.set(database="postgres"), f"DROP DATABASE {own.database}")
    run_sql(own.set(database="postgres"), f"CREATE DATABASE {own.database}")
    assert "(empty < " in refused(*command)
    assert "run `ticketflow migrate`" in refused(*command)
    assert tables(own) == 0


@pytest.mark.parametrize("command", [["settle", "2026-03"], ["import", "."]], ids=" ".join)
def test_no_command_makes_a_database_that_is_missing(own: URL, command: list[str]) -> None:
    run_sql(own.set(database="postgres"), f"DROP DATABASE {own.database}")
    assert refused(*command).endswith("does not exist; run `ticketflow migrate`, or correct TICKETFLOW_DATABASE_URL.")


def test_no_command_makes_tables_in_an_empty_storage_of_dagster(own: URL) -> None:
    said = "Dagster's storage is not that of the installed Dagster; run `ticketflow migrate`."
    assert refused("settle", "2026-03") == said
    with pytest.raises(TicketflowError, match="run `ticketflow migrate`"):
        serve(read_settings(), free_port())
    assert tables(own.set(database=f"{own.database}_dagster")) == 0


def test_what_was_migrated_is_used_by_all(own: URL) -> None:
    assert CliRunner().invoke(cli.app, ["migrate"]).output == "The schema is up to date.\n"
    with running(read_settings()) as instance, DagsterInstance.get():
        assert not instance.migrated
    assert "2020-01 is none of the months" not in CliRunner().invoke(cli.app, ["status"]).output


def test_a_process_is_handed_what_it_loads_the_code_location_with(engine: Engine, own: URL) -> None:
    decide(engine, first_month=Month(2024, 7), business_timezone="Asia/Tokyo")
    printed = json.loads(CliRunner().invoke(cli.app, ["env", "--json"]).output)
    assert (printed["TICKETFLOW_FIRST_MONTH"], printed["TICKETFLOW_BUSINESS_TIMEZONE"]) == ("2024-07", "Asia/Tokyo")
    loads = "from assets.partitions import months; print(months.get_first_partition_key(), months.timezone)"
    loaded = subprocess.run(
        [sys.executable, "-c", loads],
        env={**os.environ, **printed},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert loaded.stdout == "2024-07 Asia/Tokyo\n"
    with running(read_settings(), asked=MIGRATING) as instance:
        assert instance.environment["TICKETFLOW_FIRST_MONTH"] == "2024-07"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("FIRST_MONTH", "2014-11"),
        ("BUSINESS_TIMEZONE", "Asia/Tokyo"),
        ("PAYOUTS_FROM", "2026-01"),
        ("MAIL_FROM", "2026-01-01T00:00:00Z"),
        ("AUTO_CLOSE", "false"),
        ("FIXED_CLOCK", "2200-01-01T00:00:00Z"),
    ],
)
def test_commands_refuse_a_variable_that_says_otherwise_and_those_that_look_say_it(
    own: URL, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    CliRunner().invoke(cli.app, ["migrate"])
    monkeypatch.setenv(f"TICKETFLOW_{variable}", value)
    for command in (["import", "."], ["settle", "2026-03"], ["env"], ["migrate"]):
        settings.cache_clear()
        assert refused(*command).startswith(f"TICKETFLOW_{variable} is ")
    for command in (["health"], ["doctor"]):
        monkeypatch.setenv(f"TICKETFLOW_{variable}", value)
        settings.cache_clear()
        result = CliRunner().invoke(cli.app, command)
        assert result.exit_code == 1, result.output
        assert f"TICKETFLOW_{variable}" in result.output
    monkeypatch.setenv(f"TICKETFLOW_{variable}", value)
    settings.cache_clear()
    assert "ticketflow_settings_disagreeing 1.0" in CliRunner().invoke(cli.app, ["metrics"]).output
    assert CliRunner().invoke(cli.app, ["installation"]).exit_code == 0


def test_what_is_decided_is_shown_with_since_when_and_by_whom(own: URL) -> None:
    changed = CliRunner().invoke(cli.app, ["installation", "set", "auto_close", "false", "--by", "eva"]).output
    assert changed.startswith("auto_close is false; it was true. The next tick of the schedule follows it.")
    shown = CliRunner().invoke(cli.app, ["installation"]).output
    [line] = [line for line in shown.splitlines() if line.startswith("auto_close")]
    assert line.split()[1] == "false"
    assert line.split()[-1] == "eva"
    assert "default: file, file outbox.jsonl; remembers for ever; in doubt hold" in shown
    last = CliRunner().invoke(cli.app, ["installation", "--changes"]).output.splitlines()[-1]
    assert last.split()[2:] == ["auto_close", "true", "false", "eva", "postgres"]


def test_a_rehearsal_is_made_by_a_command(own: URL) -> None:
    assert "is not made for rehearsals" in refused("migrate", "--rehearsal")
    run_sql(own.set(database="postgres"), f"DROP DATABASE {own.database}")
    assert CliRunner().invoke(cli.app, ["migrate", "--rehearsal"]).exit_code == 0
    assert "made for rehearsals" in CliRunner().invoke(cli.app, ["installation"]).output
