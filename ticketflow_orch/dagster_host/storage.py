"""Dagster's storage in Postgres with connections that are kept, looked at before they are used, and named processes.

Outside its web server Dagster opens a connection for every query: ten a second for a daemon at rest, 150 for a run.
Most of what an idle installation cost was Postgres starting sessions. Its web server keeps connections, and answers the
first page after a restart of Postgres with an error, once for each that it had kept.

Dagster waits six seconds for a connection, and not at all where one is cut in the middle of a statement. A step that
cannot write down what it did has failed then, and where the server is back a moment later this is all that is known of
it: nobody runs it again. So a run's process waits longer, and writes an event again. Where only the answer was lost the
event stands there twice, and is shown twice.

What Dagster writes down about a run and about its daemon does not say which process it is; here it does, so that others
can tell whether it still lives.
"""

from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from dagster import DagsterEventType
from dagster_postgres import (
    DagsterPostgresStorage,
    PostgresEventLogStorage,
    PostgresRunStorage,
    PostgresScheduleStorage,
)
from dagster_postgres.utils import (
    create_pg_connection,
    get_token_provider_from_config,
    pg_url_from_config,
    set_pg_statement_timeout,
)
from sqlalchemy import event

from ticketflow_orch.dagster_host.daemons import BETWEEN_MARKS, leave_mark
from ticketflow_orch.dagster_host.dagster_internals import create_engine
from ticketflow_orch.dagster_host.run_workers import LOG_VARIABLE, WORKER_TAG, RunWorker
from ticketflow_orch.local.process_identity import ProcessIdentity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from datetime import datetime

    from dagster import DagsterEvent, EventLogEntry
    from sqlalchemy import Connection, Engine

    from ticketflow_orch.dagster_host.dagster_internals import ConfigurableClassData, DaemonHeartbeat

Result = TypeVar("Result")


class PooledPostgresStorage(DagsterPostgresStorage):
    """Runs, events and schedules, each over a pool of its own that keeps one connection in each process.

    A thread that finds it in use opens another and closes that afterwards.
    """

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]
    ) -> PooledPostgresStorage:
        """The storage that `config_value` names, in the terms of Dagster's `storage: postgres`."""
        from ticketflow_orch.local.databases import storage_url

        url = storage_url(pg_url_from_config(config_value)).render_as_string(hide_password=False)
        creates = config_value.get("should_autocreate_tables", True)
        tokens = get_token_provider_from_config(config_value)
        storage = cls(url, creates, inst_data, tokens)
        # The tables are there now; Dagster's constructor takes no other classes than its own.
        storage._run_storage = runs = _Runs(url, False, token_provider=tokens)
        storage._event_log_storage = events = _Events(url, False, token_provider=tokens)
        storage._schedule_storage = schedules = _Schedules(url, False, token_provider=tokens)
        for part in (runs, events, schedules):
            part.keep_connections()
        return storage


class _Pooled:
    postgres_url: str
    _engine: Engine

    def keep_connections(self, recycle: int = -1, overflow: int = -1) -> None:
        self._engine = create_engine(
            self.postgres_url,
            isolation_level="AUTOCOMMIT",
            pool_size=1,
            pool_recycle=recycle,
            max_overflow=overflow,
            pool_pre_ping=True,
        )

    def optimize_for_webserver(self, statement_timeout: int, pool_recycle: int, max_overflow: int) -> None:
        """As Dagster's own, in milliseconds and seconds, but for the look at a connection before it is used."""
        self.keep_connections(pool_recycle, max_overflow)
        event.listen(
            self._engine, "connect", lambda connection, _: set_pg_statement_timeout(connection, statement_timeout)
        )

    def connect(self, run_id: str | None = None) -> AbstractContextManager[Connection]:
        """A connection for as long as the block takes; the process of a run waits for a server that is away."""
        del run_id
        if LOG_VARIABLE not in os.environ:
            return create_pg_connection(self._engine)
        return self.patiently(self._engine.connect)

    def patiently(self, work: Callable[[], Result]) -> Result:
        """What `work` returns. In the process of a run it is done again while the server is away."""
        if LOG_VARIABLE not in os.environ:
            return work()
        from ticketflow_orch.db.engine import PATIENCE, PATIENCE_OPTION
        from ticketflow_orch.db.retrying import retried

        return retried(self._engine.execution_options(**{PATIENCE_OPTION: PATIENCE}), work)

    def _connect(self) -> AbstractContextManager[Connection]:
        return self.connect()


class _Runs(_Pooled, PostgresRunStorage):
    """Runs, each with the process that executes it, and daemons, each with the process that it is."""

    _marked_at = float("-inf")

    def handle_run_event(self, run_id: str, event: DagsterEvent, update_timestamp: datetime | None = None) -> None:
        """As Dagster's. It is the process that executes a run that says the run has started."""
        self.patiently(partial(super().handle_run_event, run_id, event, update_timestamp))
        if event.event_type == DagsterEventType.RUN_START:
            worker = RunWorker.this_process(run_id)
            run = self._get_run_by_id(run_id)
            if run is not None and RunWorker.named(run_id, run.tags) != worker:
                self.add_run_tags(run_id, {WORKER_TAG: worker.to_json()})

    def add_daemon_heartbeat(self, daemon_heartbeat: DaemonHeartbeat) -> None:
        """As Dagster's, which all daemons write over; and the mark that is this daemon's own."""
        super().add_daemon_heartbeat(daemon_heartbeat)
        # Each of a daemon's parts has a heartbeat.
        if time.monotonic() - self._marked_at >= BETWEEN_MARKS / 2:
            with self.connect() as connection:
                leave_mark(connection, str(daemon_heartbeat.daemon_id), ProcessIdentity.of(os.getpid()))
            self._marked_at = time.monotonic()


class _Events(_Pooled, PostgresEventLogStorage):
    """What runs say of themselves; the process of a run says it again where its connection was cut."""

    def store_event(self, event: EventLogEntry) -> None:
        """As Dagster's."""
        self.patiently(partial(super().store_event, event))

    def store_event_batch(self, events: Sequence[EventLogEntry]) -> None:
        """As Dagster's."""
        self.patiently(partial(super().store_event_batch, events))


class _Schedules(_Pooled, PostgresScheduleStorage):
    pass
