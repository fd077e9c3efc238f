"""What commands that read or write TicketFlow's database share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import Engine


@contextmanager
def database(command: str, connections: int = 5) -> Iterator[Engine]:
    """An engine on TicketFlow's database at the current schema, for as long as `command` runs.

    On the embedded server a schema that is behind is brought up to date, since nobody else would do it; elsewhere
    that is a decision of whoever runs the server.

    Raises:
        InputError: the database cannot be reached, or its schema is not this code's.
    """
    from ticketflow_orch.account import account
    from ticketflow_orch.database import connect_engine
    from ticketflow_orch.databases import serving
    from ticketflow_orch.installation import adopt
    from ticketflow_orch.migrate import migrate, require_current_schema
    from ticketflow_orch.settings import settings

    with serving(settings()) as databases:
        if databases.embedded is not None:
            migrate(databases.ticketflow)
        engine = connect_engine(databases.ticketflow, f"ticketflow {command}", connections=connections)
        try:
            require_current_schema(engine)
            if databases.embedded is not None:
                adopt(engine, settings(), account())
            yield engine
        finally:
            engine.dispose()


@contextmanager
def instance_and_database(command: str) -> Iterator[Engine]:
    """As `database`, with the Dagster instance bootstrapped and named by the environment of this process.

    Raises:
        InputError: as `database` does.
    """
    from ticketflow_orch.database import connect_engine
    from ticketflow_orch.instance import running
    from ticketflow_orch.settings import settings

    with running(settings()) as instance:
        engine = connect_engine(instance.databases.ticketflow, f"ticketflow {command}")
        try:
            yield engine
        finally:
            engine.dispose()
