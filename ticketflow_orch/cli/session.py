"""What commands that read or write TicketFlow's database share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from ticketflow_orch.db.installation import Installation


@contextmanager
def database(command: str, connections: int = 5, *, agreeing: bool = True) -> Iterator[Engine]:
    """An engine on TicketFlow's database at the current schema, for as long as `command` runs.

    On the embedded server a schema that is behind is brought up to date, since nobody else would do it; elsewhere
    that is a decision of those who run the server. From then on this process has the month and zone of the database.
    A command that changes what decides, or reports on it, need not be `agreeing` with it.

    Raises:
        Unavailable: the database cannot be reached.
        PreconditionFailed: its schema is not this code's, or the settings disagree with it.
    """
    from ticketflow_orch.db.engine import connect_engine
    from ticketflow_orch.db.installation import read_installation, require_agreement
    from ticketflow_orch.db.migrate import migrate, require_current_schema
    from ticketflow_orch.installation.agreed_routes import adopt_routes
    from ticketflow_orch.installation.deciding import adopt
    from ticketflow_orch.local.account import account
    from ticketflow_orch.local.databases import serving
    from ticketflow_orch.settings import settings

    with serving(settings(), create=False, dagster=False) as databases:
        if databases.embedded is not None:
            migrate(databases.ticketflow)
        engine = connect_engine(databases.ticketflow, f"ticketflow {command}", connections=connections)
        try:
            require_current_schema(engine)
            if databases.embedded is not None:
                adopt(engine, settings(), account())
                adopt_routes(engine, settings(), account())
            with engine.connect() as connection:
                installed = require_agreement(connection, settings()) if agreeing else read_installation(connection)
            take_over(installed)
            yield engine
        finally:
            engine.dispose()


@contextmanager
def instance_and_database(command: str) -> Iterator[Engine]:
    """As `database`, with the Dagster instance bootstrapped and named by the environment of this process.

    Raises:
        Unavailable: a database cannot be reached.
        PreconditionFailed: as `database`, or Dagster's storage is not that of the installed Dagster.
    """
    from ticketflow_orch.dagster_host.instance import running
    from ticketflow_orch.db.engine import connect_engine
    from ticketflow_orch.settings import settings

    with running(settings()) as instance:
        engine = connect_engine(instance.databases.ticketflow, f"ticketflow {command}")
        try:
            yield engine
        finally:
            engine.dispose()


def take_over(installed: Installation) -> None:
    """Let this process load the code location, and read its settings, as the database has it."""
    import os

    from ticketflow_orch.settings import settings

    os.environ.update(installed.environment)
    settings.cache_clear()
