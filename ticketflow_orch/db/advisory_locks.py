"""Work that one process at a time may do on a database, wherever its processes run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Engine

from ticketflow_orch.errors import Conflict

_BETWEEN_TRIES = 0.2


@contextmanager
def one_at_a_time(engine: Engine, key: int, work: str, longest_wait: float) -> Iterator[None]:
    """Hold the turn called `key` while the block lasts; the second one waits, for `longest_wait` seconds at most.

    The turn is a lock that lives as long as one transaction, on a connection of its own: it is gone when the process
    is. Neither holding it nor waiting for it keeps a snapshot, which CREATE INDEX CONCURRENTLY inside the block would
    wait for: so a second process asks again and again, since one that waited *inside* a statement would keep one.

    Raises:
        Conflict: the wait was too long; names `work`, which is what the other process does.
    """
    deadline = time.monotonic() + longest_wait
    with engine.connect() as connection:
        # Without a parameter: a parameter would leave a portal open, and with it a snapshot.
        while not connection.exec_driver_sql(f"SELECT pg_try_advisory_xact_lock({key:d})").scalar_one():
            connection.rollback()
            if time.monotonic() > deadline:
                raise Conflict(
                    f"Another {work} has worked on this database for {longest_wait:g} s; "
                    "let it finish or end it, then run this again."
                )
            time.sleep(_BETWEEN_TRIES)
        yield
