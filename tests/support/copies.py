"""A database that the tests of one file share, for what is too dear to set up for each of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine

from tests.conftest import fresh_database
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.local.postgres import EmbeddedServer


@contextmanager
def shared_database(server: EmbeddedServer) -> Iterator[Engine]:
    """An engine on a fresh, migrated database that is gone when the block ends."""
    with fresh_database(server) as url:
        engine = connect_engine(url, f"pytest {url.database}")
        try:
            yield engine
        finally:
            engine.dispose()
