"""TicketFlow's database as a resource."""

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg
from pydantic import Field
from sqlalchemy import Engine

from ticketflow_orch.database import SessionLimits, connect_engine
from ticketflow_orch.migrate import require_current_schema

_DEFAULTS = SessionLimits()


class DatabaseResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """Engines on TicketFlow's database, opened per piece of work, with the limits that its role is given.

    Timeouts are in seconds; 0 switches one off.
    """

    url: str = Field(description="A Postgres URL; given as an EnvVar, so that the UI shows the variable's name only.")
    statement_timeout: float = Field(default=_DEFAULTS.statement_timeout, ge=0)
    lock_timeout: float = Field(default=_DEFAULTS.lock_timeout, ge=0)
    idle_in_transaction_timeout: float = Field(default=_DEFAULTS.idle_in_transaction_timeout, ge=0)

    @contextmanager
    def engine(self, application: str, connections: int = 5) -> Iterator[Engine]:
        """An engine for the work called `application` (job and window), closed when the block ends.

        Raises:
            InputError: the URL is wrong, or the schema is behind or ahead of this code.
        """
        limits = SessionLimits(self.statement_timeout, self.lock_timeout, self.idle_in_transaction_timeout)
        engine = connect_engine(self.url, application, limits=limits, connections=connections)
        try:
            require_current_schema(engine)
            yield engine
        finally:
            engine.dispose()
