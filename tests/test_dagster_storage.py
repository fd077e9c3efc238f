"""Dagster's storage keeps its connections, and survives a server that has ended them."""

from __future__ import annotations

from pathlib import Path

import pytest
from dagster import DagsterInstance
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage
from sqlalchemy import text
from sqlalchemy.engine import URL

from tests.conftest import run_sql
from tests.homes import MIGRATING, fresh_home, variables_for
from ticketflow_orch.embedded import EmbeddedServer
from ticketflow_orch.instance import running
from ticketflow_orch.settings import read_settings


@pytest.fixture
def storage(server: EmbeddedServer, url: URL) -> URL:
    """The URL of a database for Dagster's storage that does not exist yet; it goes with the cluster."""
    return server.url(f"{url.database}_dagster")


def session(instance: DagsterInstance) -> int:
    """The server's process that answers what the instance asks."""
    events = instance.event_log_storage
    assert isinstance(events, SqlEventLogStorage)
    with events.index_connection() as connection:
        return int(connection.execute(text("SELECT pg_backend_pid()")).scalar_one())


def test_all_parts_of_the_storage_share_one_session_until_the_server_ends_it(
    scratch: Path, url: URL, storage: URL
) -> None:
    with (
        fresh_home(scratch, **variables_for(url, storage)),
        running(read_settings(), asked=MIGRATING),
        DagsterInstance.get() as instance,
    ):
        first = session(instance)
        instance.get_runs(limit=1)
        instance.all_instigator_state()
        instance.get_daemon_heartbeats()
        assert session(instance) == first

        run_sql(url, f"SELECT pg_terminate_backend({first})")
        assert instance.get_runs() == []
        assert session(instance) != first
