"""The Postgres that a benchmark runs on: its own, on disk, with the durability of production."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine

from ticketflow_orch.db.engine import SessionLimits, connect_engine
from ticketflow_orch.local.postgres import EmbeddedServer


@contextmanager
def own_server(parameters: Mapping[str, str], keep: Path | None = None) -> Iterator[EmbeddedServer]:
    """A running server with `parameters`, of which nothing is left when the block ends, by SIGTERM too.

    In `keep` it is found again by the next run, and only stopped.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    folder = keep or Path(tempfile.mkdtemp(prefix="ticketflow-benchmark-"))
    folder.mkdir(parents=True, exist_ok=True)
    # As root, another account runs the server and must reach it.
    folder.chmod(0o755)
    server = EmbeddedServer(folder, parameters=parameters)
    server.start()
    try:
        yield server
    finally:
        if keep:
            server.stop()
        else:
            server.remove()
            (folder / "postgres.lock").unlink(missing_ok=True)
            folder.rmdir()


def connect(server: EmbeddedServer, database: str = "postgres", *, connections: int = 5) -> Engine:
    """An engine on `database` whose sessions are those of a run, but for the limits on time."""
    limits = SessionLimits(statement_timeout=0, lock_timeout=0, idle_in_transaction_timeout=0)
    return connect_engine(server.url(database), "benchmark", limits=limits, connections=connections)


@contextmanager
def autocommit(engine: Engine) -> Iterator[Connection]:
    """A connection on which each statement is a transaction by itself, however long it takes."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("SET statement_timeout = 0")
        yield connection
