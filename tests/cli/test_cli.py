"""The command line: what it prints, what it refuses, and with which exit code."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.engine import URL
from typer.testing import CliRunner, Result

from tests.conftest import run_sql
from tests.support.homes import MIGRATING, fresh_home, variables_for
from ticketflow_orch import cli
from ticketflow_orch.dagster_host.instance import running
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.settings import read_settings

ORGANIZATION = {
    "external_ref": "a", "name": "A", "timezone": "Europe/Madrid", "currency": "EUR", "commission_rate_bps": "1000",
    "commission_tax_bps": "2000", "joined_on": "2020-01-01", "left_on": "", "contact_email": "", "locale": "es",
}  # fmt: skip


@pytest.fixture
def home(scratch: Path) -> Iterator[Path]:
    """An empty home with an embedded server of its own."""
    with fresh_home(scratch) as home:
        yield home


@pytest.fixture
def external(server: EmbeddedServer, scratch: Path, url: URL) -> Iterator[URL]:
    """A home on a running server with a migrated database; Dagster's is not there yet."""
    storage = server.url(f"{url.database}_dagster")
    with fresh_home(scratch, **variables_for(url, storage)):
        yield url
    run_sql(server.url(), f"DROP DATABASE IF EXISTS {storage.database} WITH (FORCE)")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, arguments)


def write_organization(folder: Path, **values: str) -> None:
    row = ORGANIZATION | values
    (folder / "organizations.csv").write_text(f"{','.join(row)}\n{','.join(row.values())}\n")


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit code of the console script."""
    monkeypatch.setattr(sys, "argv", ["ticketflow", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


def test_help_lists_every_command_and_its_exit_codes_without_loading_dagster_or_a_driver() -> None:
    code = (
        "import sys, ticketflow_orch.cli as cli\n"
        "try: cli.main()\n"
        "finally: print(sorted({'dagster', 'sqlalchemy', 'psycopg', 'pydantic', 'pyarrow'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, "--help"]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout

    assert printed.endswith("[]\n")
    for name in ("ui", "doctor", "import", "migrate", "env", "db", "Exit codes: 0 done"):
        assert name in printed


def test_a_home_that_cannot_be_had_is_one_line_on_stderr_and_exit_code_2(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    taken = scratch / "a-file"
    taken.touch()
    with fresh_home(scratch):
        monkeypatch.setenv("TICKETFLOW_HOME", str(taken))
        assert run_main(monkeypatch, "db", "start") == 2
    assert capfd.readouterr().err == f"error: {taken}: File exists; set TICKETFLOW_HOME to a folder.\n"


def test_a_refused_input_is_one_line_on_stderr_and_exit_code_2(
    home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TICKETFLOW_DATABASE_URL", "postgresql://u:s3cr3t@host/x")

    assert run_main(monkeypatch, "db", "url") == 2

    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("error: TICKETFLOW_DATABASE_URL is set but TICKETFLOW_DAGSTER_DATABASE_URL is not")
    assert err.count("\n") == 1
    assert "s3cr3t" not in err


def test_a_refused_setting_names_its_variable(
    home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TICKETFLOW_WORKERS", "none")

    assert run_main(monkeypatch, "doctor") == 2
    assert capfd.readouterr().err.startswith("error: TICKETFLOW_WORKERS='none' is refused")


def test_the_printed_environment_survives_a_shell_whatever_the_folder_is_called(scratch: Path) -> None:
    with fresh_home(scratch) as plain:
        odd = plain / 'it\'s a "$HOME"'
        os.environ["TICKETFLOW_HOME"] = str(odd)
        lines = invoke("env").stdout
        printed = json.loads(invoke("env", "--json").stdout)
        script = f'{lines}\npython() {{ {shlex.quote(sys.executable)} "$@"; }}\n'
        script += "python -c 'import json, os; print(json.dumps(dict(os.environ)))'"
        seen = json.loads(
            subprocess.run(["sh", "-c", script], env={}, capture_output=True, text=True, timeout=30, check=True).stdout
        )

    assert printed["DAGSTER_HOME"] == str(odd / "dagster")
    assert printed.items() <= seen.items()


def test_printing_the_environment_starts_nothing_and_says_so(home: Path) -> None:
    result = invoke("env")

    assert "start it with `ticketflow db start`" in result.stderr
    assert "TICKETFLOW_DATABASE_URL" in result.stdout
    assert (home / "dagster" / "dagster.yaml").is_file()
    assert not (home / "postgres").exists()


def test_the_embedded_server_is_started_kept_and_stopped_by_hand(home: Path) -> None:
    assert "runs until `ticketflow db stop`" in invoke("db", "start").stdout
    assert "up to date" in invoke("migrate").stdout
    assert EmbeddedServer(home).pid() is not None
    assert invoke("env").stderr == ""

    for arguments, name in ((["db", "url"], "ticketflow"), (["db", "url", "--dagster"], "ticketflow_dagster")):
        printed = invoke(*arguments).stdout.strip()
        assert printed.startswith("postgresql://"), "libpq knows no drivers"
        engine = connect_engine(printed, "pytest")
        with engine.connect() as connection:
            assert connection.execute(text("SELECT current_database()")).scalar_one() == name
        engine.dispose()

    assert "is stopped" in invoke("db", "stop").stdout
    assert "was not running" in invoke("db", "stop").stdout
    assert EmbeddedServer(home).pid() is None


def test_migrating_says_whether_anything_had_to_be_done(external: URL) -> None:
    run_sql(external.set(database="postgres"), f"DROP DATABASE {external.database}")

    assert invoke("migrate").stdout == "The schema was brought up to date.\n"
    assert invoke("migrate").stdout == "The schema is up to date.\n"


def test_the_doctor_finds_a_fresh_machine_stopped_but_not_wrong(home: Path) -> None:
    result = invoke("doctor")

    assert result.exit_code == 0, result.output
    assert "`ticketflow db start` makes it stay" in result.stdout
    assert not home.exists(), "it only looks"
    assert invoke("doctor", "--strict").exit_code == 1


def test_the_doctor_names_each_thing_that_is_wrong_and_its_mend_until_all_is_well(external: URL) -> None:
    never = invoke("doctor")
    assert never.exit_code == 1
    assert "does not exist" in never.stdout
    assert "ticketflow migrate" in never.stdout

    with running(read_settings(), asked=MIGRATING):
        well = invoke("doctor")
    assert well.exit_code == 0, well.output
    assert "settlement 1" in well.stdout
    assert "was never seen" in well.stdout, "no daemon runs here"

    run_sql(external, "UPDATE alembic_version SET version_num = '0001'")
    (read_settings().home / "dagster" / "dagster.yaml").write_text("nux: {enabled: true}\n")
    behind = invoke("doctor")
    assert behind.exit_code == 1
    assert "behind this code" in behind.stdout
    assert "is not the one of this version" in behind.stdout


def test_the_doctor_reports_an_unreachable_server_without_its_password(scratch: Path) -> None:
    nowhere = URL.create("postgresql", "u", "s3cr3t", "127.0.0.1", 1, "x")
    with fresh_home(scratch, **variables_for(nowhere, nowhere.set(database="y"))):
        result = invoke("doctor")

    assert result.exit_code == 1
    assert "Connection refused" in result.stdout
    assert "s3cr3t" not in result.output


def test_a_folder_is_imported_once_and_can_be_taken_back(external: URL, tmp_path: Path) -> None:
    write_organization(tmp_path)

    assert invoke("import", str(tmp_path)).stdout.startswith("Import 1 of")
    assert invoke("import", str(tmp_path)).stdout.startswith("Nothing new in")
    assert "is undone" in invoke("import", "--undo", "1").stdout


def test_a_refused_import_lists_file_line_column_value_and_reason(
    external: URL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write_organization(tmp_path, timezone="[red]Mars[/]")

    assert run_main(monkeypatch, "import", str(tmp_path)) == 2

    table, error = capfd.readouterr().err.rstrip("\n").rsplit("\n", 1)
    assert table.splitlines()[1].split()[:4] == ["organizations.csv", "2", "timezone", "[red]Mars[/]"]
    assert error.startswith("error: Nothing was imported: 1 problem.")


@pytest.mark.parametrize("arguments", [[], ["somewhere", "--undo", "1"]])
def test_an_import_needs_either_a_folder_or_an_import_to_take_back(
    home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert run_main(monkeypatch, "import", *arguments) == 2
    assert "either a folder" in capfd.readouterr().err


def test_reading_an_external_database_whose_schema_is_behind_is_refused(
    external: URL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run_sql(external.set(database="postgres"), f"DROP DATABASE {external.database}")

    assert run_main(monkeypatch, "import", str(tmp_path)) == 2
    assert "run `ticketflow migrate`" in capfd.readouterr().err


def test_a_mistyped_command_is_refused_like_any_input(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_main(monkeypatch, "setle") == 2
