"""Sessions side by side: transactions whose statements may be left waiting for one another."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy import Engine, text

PATIENCE = 60.0


class Session:
    """One transaction in a session of its own; `start` leaves a statement running, `run` waits for it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._connection = engine.connect()
        self._thread = ThreadPoolExecutor(1)
        driver = self._connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        self.pid = driver.info.backend_pid
        self._connection.rollback()

    def run(self, statement: str, **parameters: Any) -> None:
        self.start(statement, **parameters).result(PATIENCE)

    def start(self, statement: str, **parameters: Any) -> Future[Any]:
        return self._thread.submit(self._connection.execute, text(statement), parameters)

    def start_copy(self, statement: str, lines: str) -> Future[Any]:
        """Leave a COPY … FROM STDIN of these lines running."""

        def copy() -> None:
            driver = self._connection.connection.driver_connection
            assert isinstance(driver, psycopg.Connection)
            self._connection.begin()
            with driver.cursor().copy(sql.SQL(statement)) as target:
                target.write(lines)

        return self._thread.submit(copy)

    def waits(self) -> bool:
        """Whether the statement that was started comes to wait for a lock, rather than to its end."""
        ended = self._thread.submit(lambda: None)
        return becomes(lambda: _is_waiting(self._engine, self.pid), unless=ended.done)

    def commit(self) -> None:
        self._thread.submit(self._connection.commit).result(PATIENCE)

    def rollback(self) -> None:
        self._thread.submit(self._connection.rollback).result(PATIENCE)

    def close(self) -> None:
        self._thread.submit(self._connection.close).result(PATIENCE)
        self._thread.shutdown()


@contextmanager
def two_sessions(engine: Engine) -> Iterator[tuple[Session, Session]]:
    """Two sessions, closed in the end; the first is the one that comes first."""
    first, second = Session(engine), Session(engine)
    try:
        yield first, second
    finally:
        first.close()
        second.close()


def becomes(
    condition: Callable[[], bool], *, unless: Callable[[], bool] = lambda: False, patience: float = PATIENCE
) -> bool:
    """Wait for `condition`; False when `unless` came first. Fails when neither came in `patience` seconds."""
    deadline = time.monotonic() + patience
    while not condition():
        if unless():
            return False
        assert time.monotonic() < deadline, f"waited {patience:g} s for nothing"
        time.sleep(0.01)
    return True


def waiting_for_a_transaction(engine: Engine) -> bool:
    """Whether any session waits for another's transaction to end."""
    with engine.connect() as connection:
        waiting = text("SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted)")
        return bool(connection.execute(waiting).scalar_one())


def _is_waiting(engine: Engine, pid: int) -> bool:
    with engine.connect() as connection:
        return bool(
            connection.execute(
                text("SELECT EXISTS (SELECT FROM pg_locks WHERE pid = :pid AND NOT granted)"), {"pid": pid}
            ).scalar_one()
        )
