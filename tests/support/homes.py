"""Homes of a test's own: an embedded server and a Dagster instance that nobody else sees."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import dagster as dg
from sqlalchemy.engine import URL

from tests.conftest import run_sql
from ticketflow_orch.dagster_host.instance import Preparing, running
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.settings import read_settings, settings

# As `ticketflow migrate` does, which also prepares a server of one's own.
MIGRATING = Preparing(own_server=True)


@contextmanager
def fresh_home(scratch: Path, **variables: str) -> Iterator[Path]:
    """An environment whose only TicketFlow variables are an empty home below `scratch`, and `variables`.

    Both the environment and the disk are as before when the block ends; an embedded server in the home is gone.
    """
    home = scratch / f"h-{uuid.uuid4().hex[:6]}"
    bare = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("TICKETFLOW_") and name != "DAGSTER_HOME"
    }
    with patch.dict(os.environ, {**bare, "TICKETFLOW_HOME": str(home), **variables}, clear=True):
        settings.cache_clear()
        try:
            yield home
        finally:
            settings.cache_clear()
            if home.exists():
                EmbeddedServer(home).remove()
                shutil.rmtree(home)


@contextmanager
def dagster_instance() -> Iterator[dg.DagsterInstance]:
    """An instance of Dagster's own kind, in files that are gone when the block ends."""
    with tempfile.TemporaryDirectory() as home:
        shutil.copytree(_prepared_instance(), home, dirs_exist_ok=True)
        with dg.instance_for_test(temp_dir=home) as instance:
            yield instance


@functools.cache
def _prepared_instance() -> Path:
    """An instance that nobody has used: making its tables takes longer than most tests that use them."""
    home = tempfile.TemporaryDirectory()
    atexit.register(home.cleanup)
    with dg.DagsterInstance.local_temp(home.name) as instance:
        instance.get_runs()
        instance.all_instigator_state()
    return Path(home.name)


@contextmanager
def dagster_storage(server: EmbeddedServer, url: URL) -> Iterator[URL]:
    """The URL of a database for Dagster's storage, beside the one at `url`, that does not exist yet."""
    storage = server.url(f"{url.database}_dagster")
    try:
        yield storage
    finally:
        run_sql(server.url(), f"DROP DATABASE IF EXISTS {storage.database} WITH (FORCE)")


@contextmanager
def bootstrapped(scratch: Path, url: URL, storage: URL) -> Iterator[dg.DagsterInstance]:
    """A bootstrapped instance on these databases, in a home of its own, opened as any Dagster process opens it."""
    with (
        fresh_home(scratch, **variables_for(url, storage)),
        running(read_settings(), asked=MIGRATING),
        dg.DagsterInstance.get() as instance,
    ):
        yield instance


def variables_for(ticketflow: URL, dagster: URL) -> dict[str, str]:
    """The variables that name two databases of an external server."""
    return {
        "TICKETFLOW_DATABASE_URL": ticketflow.render_as_string(hide_password=False),
        "TICKETFLOW_DAGSTER_DATABASE_URL": dagster.render_as_string(hide_password=False),
    }
