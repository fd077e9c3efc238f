"""Listening: a resident relay hears at once of what was written to the outbox, and looks.

What it hears says that something is there, never what; the outbox itself is the truth. A listener that lost its
connection, or whose pooler keeps what it should hear from it, costs no more than the second between two looks.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Sequence

import psycopg
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from ticketflow_orch.outbox.relay.producer import Producer

CHANNEL = "ticketflow_outbox"
# In seconds: how often the connection is asked whether it still listens, how long a wait for news is, how long it takes
# to come back at most.
_ASKED = 10.0
_HEARD = 0.5
_AWAY = 10.0
_LOG = logging.getLogger(__name__)


class Listener:
    """Wakes `producers` whenever something was written, from a thread of its own, until it is closed."""

    def __init__(self, engine: Engine, producers: Sequence[Producer]) -> None:
        self._engine = engine
        self._producers = producers
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="relay listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        wait = _HEARD
        while not self._closed.is_set():
            began = time.monotonic()
            try:
                self._listen()
            except (SQLAlchemyError, psycopg.Error) as error:
                if time.monotonic() - began > _ASKED:
                    wait = _HEARD
                line = (str(error).splitlines() or [type(error).__name__])[0]
                _LOG.warning("Nothing is heard of new events, which are looked for each second: %s", line)
                self._closed.wait(wait * random.uniform(0.5, 1))  # noqa: S311 - jitter
                wait = min(2 * wait, _AWAY)

    def _listen(self) -> None:
        with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            driver = connection.connection.driver_connection
            if not isinstance(driver, psycopg.Connection):
                raise TypeError(f"{type(driver).__name__} cannot listen")
            try:
                connection.exec_driver_sql(f"LISTEN {CHANNEL}")
                # What was written before it listened.
                self._call()
                while not self._closed.is_set():
                    self._hear(driver)
                    self._require_listening(connection)
            finally:
                # Nobody else is to have a connection that listens.
                connection.invalidate()

    def _hear(self, driver: psycopg.Connection) -> None:
        until = time.monotonic() + _ASKED
        while not self._closed.is_set() and time.monotonic() < until:
            for _ in driver.notifies(timeout=_HEARD, stop_after=1):
                self._call()

    def _call(self) -> None:
        for producer in self._producers:
            producer.wake()

    @staticmethod
    def _require_listening(connection: Connection) -> None:
        # A pooler may give each statement to another session.
        listening = connection.exec_driver_sql("SELECT pg_listening_channels()").scalars().all()
        if CHANNEL not in listening:
            raise psycopg.OperationalError("this session does not listen any more; a pooler may be in between")
