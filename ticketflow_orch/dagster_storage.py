"""Dagster's storage in Postgres with connections that are kept.

Outside its web server Dagster opens a connection for every query: ten a second for a daemon at rest, 150 for a run.
Most of what an idle installation cost was Postgres starting sessions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dagster._core.storage.sql import create_engine
from dagster_postgres import DagsterPostgresStorage
from dagster_postgres.utils import get_token_provider_from_config, pg_url_from_config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dagster._serdes import ConfigurableClassData

# What a process keeps open while it rests. A thread that finds them in use opens one more and closes it afterwards.
_KEPT = 2


class PooledPostgresStorage(DagsterPostgresStorage):
    """Runs, events and schedules over one pool of connections in each process, each looked at before it is used.

    The web server, which asks for pools of its own and a statement timeout, gets them as from Dagster's own class.
    """

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]
    ) -> PooledPostgresStorage:
        """The storage that `config_value` names, in the terms of Dagster's `storage: postgres`."""
        storage = cls(
            pg_url_from_config(config_value),
            config_value.get("should_autocreate_tables", True),
            inst_data,
            get_token_provider_from_config(config_value),
        )
        storage._pool_connections()
        return storage

    def _pool_connections(self) -> None:
        engine = create_engine(
            self.postgres_url,
            isolation_level="AUTOCOMMIT",
            pool_size=_KEPT,
            max_overflow=-1,
            # Postgres may have been started anew since.
            pool_pre_ping=True,
        )
        for storage in (self._run_storage, self._event_log_storage, self._schedule_storage):
            storage._engine = engine
