"""`ticketflow roles` as a person runs it: set up, again, and checked."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.engine import URL
from typer.testing import CliRunner

from tests.support.homes import fresh_home, variables_for
from tests.support.sql_statements import execute
from ticketflow_orch.cli.commands import app
from ticketflow_orch.local.postgres import EmbeddedServer


def test_the_roles_are_set_up_once_and_checked(server: EmbeddedServer, engine: Engine, url: URL, scratch: Path) -> None:
    def roles(*options: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["roles", *options])
        return result.exit_code, result.output

    with fresh_home(scratch, TICKETFLOW_FIRST_MONTH="2014-10", **variables_for(url, server.url("unused"))):
        code, said = roles("--check")
        assert (code, "the roles are not set up in this database" in said or "there is no role" in said) == (1, True)
        code, said = roles()
        assert (code, said.splitlines()[-1]) == (0, "The roles are set up.")
        assert "now: INSERT on ledger_entry to ticketflow_run" in said
        assert roles() == (0, "The roles were set up already; nothing was changed.\n")
        assert roles("--check") == (0, "Every role has what it needs, and no more.\n")
        execute(engine, "REVOKE SELECT ON payout FROM ticketflow_relay")
        code, said = roles("--check")
        assert (code, said.splitlines()[0]) == (
            1, "role ticketflow_relay may not SELECT payout, which the relay needs",
        )  # fmt: skip
