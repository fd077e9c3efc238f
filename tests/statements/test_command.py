"""`ticketflow statement`: one organization's statements, from a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine
from sqlalchemy.engine import URL
from typer.testing import CliRunner

from tests.support.homes import fresh_home, variables_for
from tests.support.rows import add_movement, add_organization
from tests.support.statements import MARCH, close
from ticketflow_orch import cli
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.local.postgres import EmbeddedServer


@pytest.fixture
def home(engine: Engine, url: URL, server: EmbeddedServer, scratch: Path) -> Iterator[Path]:
    """A home on the test's own database, in which March is closed and no statement is issued."""
    organization = add_organization(engine, external_ref="teatro")
    for currency in ("EUR", "JPY"):
        add_movement(engine, organization, 1_000, "2026-03-10T10:00", currency=currency)
    close(engine, MARCH)
    with fresh_home(scratch, **variables_for(url, server.url())) as home:
        yield home


def test_it_prints_where_each_statement_is(home: Path) -> None:
    result = CliRunner().invoke(cli.app, ["statement", "teatro", "2026-03"], catch_exceptions=False)
    assert result.exit_code == 0
    folder = home / "statements" / "2026-03" / "organizations" / "teatro"
    assert result.stdout.splitlines() == [str(folder / "EUR.html"), str(folder / "JPY.html")]
    assert all(path.is_file() for path in (folder / "EUR.html", folder / "JPY.html"))


def test_it_refuses_what_there_is_not(home: Path) -> None:
    for arguments, refusal in (
        (["teatro", "2026-13"], "'2026-13' is not a month"),
        (["teatro", "2026-02"], "2026-02 lies before 2026-03, with which the books begin"),
        (["nobody", "2026-03"], "There is no organization 'nobody'"),
        (["teatro", "2026-03", "--currency", "KWD"], "teatro has no statement of 2026-03 in KWD"),
    ):
        with pytest.raises(TicketflowError, match=refusal):
            CliRunner().invoke(cli.app, ["statement", *arguments], catch_exceptions=False)
    assert not (home / "statements").exists()
