"""`ticketflow env` for one process, secrets in files, and the page that says which process needs what."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.support.homes import fresh_home
from ticketflow_orch.cli.commands import app
from ticketflow_orch.cli.env import Process
from ticketflow_orch.errors import InvalidInput
from ticketflow_orch.secret_variables import secret
from ticketflow_orch.settings import read_settings, unknown_variables

PAGE = Path(__file__).parents[2] / "docs" / "servers.md"
OURS, DAGSTERS = "postgresql://me:one@127.0.0.1:1/money", "postgresql://me:two@127.0.0.1:1/dagster"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with fresh_home(tmp_path):
        yield tmp_path


def printed(process: Process, *options: str) -> str:
    result = CliRunner().invoke(app, ["env", "--for", process, *options], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


@pytest.mark.parametrize("process", Process)
def test_the_page_says_which_process_gets_which_variable(
    folder: Path, monkeypatch: pytest.MonkeyPatch, process: Process
) -> None:
    monkeypatch.setenv("TICKETFLOW_DATABASE_URL", OURS)
    monkeypatch.setenv("TICKETFLOW_DAGSTER_DATABASE_URL", DAGSTERS)
    header, _, *rows = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("|")]
    column = [cell.strip() for cell in header.split("|")].index(process)
    said = {re.sub("`", "", cells[1].strip()): cells[column].strip() for cells in (row.split("|") for row in rows)}
    assert {name for name, needs in said.items() if needs == "yes"} == set(json.loads(printed(process, "--json")))


@pytest.mark.parametrize("process", [Process.WEBSERVER, Process.DAEMON])
def test_a_host_of_webserver_or_daemon_needs_no_word_of_the_money_database(
    folder: Path, monkeypatch: pytest.MonkeyPatch, process: Process
) -> None:
    (folder / "url").write_text(f"{DAGSTERS}\n", "utf-8")
    monkeypatch.setenv("TICKETFLOW_DAGSTER_DATABASE_URL_FILE", str(folder / "url"))
    said = printed(process)
    assert "TICKETFLOW_DATABASE_URL" not in said
    assert "postgresql+psycopg2://me:two@127.0.0.1:1/dagster" in said
    assert said.splitlines()[-1] == "unset TICKETFLOW_DAGSTER_DATABASE_URL_FILE"
    assert (read_settings().home / "dagster" / "dagster.yaml").is_file()


def test_a_secret_is_read_from_its_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "url").write_text(f"{OURS}\n", "utf-8")
    monkeypatch.setenv("TICKETFLOW_DATABASE_URL_FILE", str(folder / "url"))
    found = read_settings()
    assert found.database_url is not None
    assert found.database_url.get_secret_value() == OURS
    assert OURS not in repr(found)
    assert unknown_variables() == ()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "SIGNING_FILE=.*cannot be read .No such file or directory."),
        (b"", "does not hold one line"),
        (b"one\ntwo\n", "does not hold one line"),
        (b"\xff\xfe", "is no text in UTF-8"),
    ],
)
def test_a_file_that_holds_no_secret_is_refused(folder: Path, content: bytes | None, said: str) -> None:
    file = folder / "signing"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InvalidInput, match=said):
        secret("SIGNING", {"SIGNING_FILE": str(file)})


def test_a_secret_and_its_file_are_refused_together_and_not_shown() -> None:
    with pytest.raises(InvalidInput, match="SIGNING and SIGNING_FILE are both set; unset one of them") as refused:
        secret("SIGNING", {"SIGNING": "whsec_x", "SIGNING_FILE": "/run/secrets/signing"})
    assert "whsec_x" not in str(refused.value)
