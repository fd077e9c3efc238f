"""A database that the tests of one file share, for what is too dear to set up for each of them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine

from tests.conftest import TEMPLATE, run_sql
from ticketflow_orch.database import connect_engine
from ticketflow_orch.embedded import EmbeddedServer


@contextmanager
def shared_database(server: EmbeddedServer) -> Iterator[Engine]:
    """An engine on a fresh, migrated database that is gone when the block ends."""
    name = f"shared_{uuid.uuid4().hex[:12]}"
    run_sql(server.url(), f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
    engine = connect_engine(server.url(name), f"pytest {name}")
    try:
        yield engine
    finally:
        engine.dispose()
        run_sql(server.url(), f"DROP DATABASE {name} WITH (FORCE)")
