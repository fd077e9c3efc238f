"""The platform on which input is refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from resources import DatabaseResource
from tests.cli.refusals import World
from tests.conftest import fresh_database, run_sql
from tests.support.homes import MIGRATING, fresh_home, variables_for
from tests.support.rows import add_movement, add_organization
from ticketflow_orch.dagster_host.instance import running
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.definitions import build_definitions
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.settings import settings


@pytest.fixture(scope="module")
def world(server: EmbeddedServer, scratch: Path) -> Iterator[World]:
    """One database for all that is refused, since none of it may leave a trace."""
    with ExitStack() as stack:
        url = stack.enter_context(fresh_database(server))
        storage = server.url(f"{url.database}_dagster")
        stack.callback(run_sql, server.url(), f"DROP DATABASE IF EXISTS {storage.database} WITH (FORCE)")
        first = {"TICKETFLOW_FIRST_MONTH": os.environ["TICKETFLOW_FIRST_MONTH"]}
        home = stack.enter_context(fresh_home(scratch, **variables_for(url, storage), **first))
        engine = connect_engine(url, "pytest bad input")
        stack.callback(engine.dispose)
        add_movement(engine, add_organization(engine, external_ref="hall", timezone="UTC"), 100, "2026-01-10T10:00")
        with running(settings(), asked=MIGRATING):
            home.mkdir(exist_ok=True)
        (home / "a-file").touch()
        os.mkfifo(home / "a-pipe")
        database = DatabaseResource(url=url.render_as_string(hide_password=False))
        yield World(server, engine, url, home, build_definitions({"database": database}))
