"""The commands of the page about Postgres: what is restored elsewhere is right, and pays and mails nothing again."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Engine
from sqlalchemy.engine import URL

from tests.conftest import run_sql
from tests.servers.effects import DELIVERY, START, Work, remind
from tests.support.homes import fresh_home, variables_for
from tests.support.payable import MARCH, request, rows
from tests.support.provider import Provider
from tests.support.rows import add_event, add_movement, add_organization, add_reservation, instant
from tests.support.sinks.smtp_server import SmtpServer, message_ids
from tests.support.standbys import programs
from tests.support.statements import close
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.local.postgres import EmbeddedServer

PAGE = Path(__file__).parents[2] / "docs" / "postgres.md"
NAMES = [f"hall-{number}" for number in range(4)]


def shown() -> str:
    """The block of commands of the page's part about backups."""
    part = PAGE.read_text("utf-8").split("## Backup and restore", 1)[1]
    found = re.search(r"```\n(.*?)```", part, re.DOTALL)
    assert found is not None
    return found[1]


def written(url: URL) -> str:
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


def add_month(engine: Engine) -> None:
    """A month that is closed and owes, and two ticket holders to remind."""
    for name in NAMES:
        add_movement(engine, add_organization(engine, external_ref=name), 100_000, "2026-03-10T10:00")
    close(engine, MARCH)
    evening = add_event(engine, 1, external_ref="evening", starts_at=START, ends_at=START.replace(hour=21))
    for name in ("ana", "eva"):
        bought = {"status": "CONFIRMED", "confirmed_at": instant("2026-04-01T10:00")}
        add_reservation(engine, evening, public_ref=name, buyer_email=f"{name}@example.com", **bought)


@pytest.mark.every_server
def test_the_commands_of_the_page_restore_a_database_that_pays_and_mails_nothing_again(
    server: EmbeddedServer, engine: Engine, start_provider: Callable[..., Provider], tmp_path: Path, scratch: Path
) -> None:
    provider = start_provider()
    tools = programs(server)
    name = f"restored_{engine.url.database}"
    restored = server.url(name)
    with SmtpServer() as mails, fresh_home(scratch, **variables_for(server.url(name), server.url("nobody"))):
        path = tmp_path / "delivery.toml"
        path.write_text(DELIVERY.format(url=provider.url, port=mails.port), "utf-8")
        add_month(engine)
        remind(engine)
        Work(engine, path).deliver(20)
        assert len(mails.stored) == 2
        commands = shown().replace("ticketflow_restored", name)
        environment = {
            **os.environ,
            "PATH": f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "DATABASE": written(server.url(str(engine.url.database))),
            "SERVER": written(server.url()),
            "RESTORED": written(restored),
        }
        # What happens between the backup and the restore.
        dump, *others = commands.splitlines()
        try:
            ran(dump, tmp_path, environment)
            request(engine)
            Work(engine, path).deliver(20)
            paid = provider.paid
            assert len(paid) == len(NAMES)
            said = ran("\n".join(others), tmp_path, environment)
            assert "0 breaches" in said or "holds" in said, said
            again = connect_engine(restored, "restored", connections=40)
            request(again)
            remind(again)
            Work(again, path).deliver(20)
            assert rows(again, "SELECT state, count(*) FROM payout GROUP BY 1") == [("CONFIRMED", len(NAMES))]
            again.dispose()
        finally:
            run_sql(server.url(), f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        assert provider.paid == paid
        assert len(message_ids(mails)) == 2


def ran(commands: str, folder: Path, environment: dict[str, str]) -> str:
    """What the commands print, none of which may fail."""
    ended = subprocess.run(
        ["bash", "-eu", "-c", commands], check=False, cwd=folder, env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout
