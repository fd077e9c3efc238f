"""Bringing a database to the schema this code knows, and telling whether it is there."""

from __future__ import annotations

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine
from sqlalchemy.engine import URL

from ticketflow_orch.database import SessionLimits, connect_engine
from ticketflow_orch.errors import InputError

# Any constant serves, as long as every version of this project takes the same.
_ONE_AT_A_TIME = 6_240_172


def migrate(url: str | URL, revision: str = "head") -> bool:
    """Bring the database at `url` to `revision`; returns whether anything had to be done.

    Safe to repeat, and to start twice at once: the second waits, then finds nothing left. The wait is a lock that
    lives as long as one transaction; its session holds no snapshot, so it does not hold up CREATE INDEX CONCURRENTLY.

    Raises:
        InputError: the schema is ahead of this code, or a step could not be finished; says what to do.
    """
    unbounded = SessionLimits(statement_timeout=0, lock_timeout=0, idle_in_transaction_timeout=0)
    engine = connect_engine(url, "ticketflow migrate", limits=unbounded, connections=2)
    try:
        with engine.begin() as turn, engine.connect() as connection:
            # Without a parameter: a parameter would leave a portal open, and with it a snapshot that concurrent index
            # builds wait for, here for ever.
            turn.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_ONE_AT_A_TIME})")
            current = _current_revision(connection)
            connection.rollback()
            if current == _resolve(revision):
                return False
            _refuse_unknown(current)
            config = _configuration()
            config.attributes["connection"] = connection
            command.upgrade(config, revision)
            return True
    finally:
        engine.dispose()


def require_current_schema(engine: Engine) -> None:
    """Raise InputError when the schema is behind or ahead of this code; names both revisions and the mend."""
    with engine.connect() as connection:
        current = _current_revision(connection)
    head = _resolve("head")
    if current == head:
        return
    _refuse_unknown(current)
    raise InputError(
        f"The database's schema is behind this code ({current or 'empty'} < {head}); run `ticketflow migrate`."
    )


def _refuse_unknown(current: str | None) -> None:
    known = {script.revision for script in ScriptDirectory.from_config(_configuration()).walk_revisions()}
    if current is not None and current not in known:
        raise InputError(
            f"The database's schema is ahead of this code (revision {current} is unknown here); "
            "upgrade ticketflow-orch to the version that migrated it."
        )


def _current_revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _resolve(revision: str) -> str | None:
    revisions = ScriptDirectory.from_config(_configuration())
    return revisions.get_current_head() if revision == "head" else revision


def _configuration() -> Config:
    config = Config()
    config.set_main_option("script_location", "ticketflow_orch:migrations")
    return config
