"""Bringing a database to the schema this code knows, and telling whether it is there."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from sqlalchemy import Connection, Engine
from sqlalchemy.engine import URL
from sqlalchemy.exc import PendingRollbackError

from ticketflow_orch.db.advisory_locks import one_at_a_time
from ticketflow_orch.db.engine import SessionLimits, connect_engine
from ticketflow_orch.errors import PreconditionFailed

# Any constant serves, as long as every version of this project takes the same.
_TURN = 6_240_172
# Statements may take as long as a large table needs; waiting for others may not: for another migration, or for old
# transactions while an index is built beside them.
_LIMITS = SessionLimits(statement_timeout=0, lock_timeout=60 * 60, idle_in_transaction_timeout=0)


def migrate(url: str | URL, revision: str = "head") -> bool:
    """Bring the database at `url` to `revision`; returns whether anything had to be done.

    Safe to repeat, and to start twice at once: the second waits, then finds nothing left.

    Raises:
        PreconditionFailed: the schema is ahead of this code, or what is there does not allow a step; says what to do.
        Conflict: another process migrates this database for longer than anybody waits.
    """
    engine = connect_engine(url, "ticketflow migrate", limits=_LIMITS, connections=2)
    try:
        turn = one_at_a_time(engine, _TURN, "`ticketflow migrate`", longest_wait=_LIMITS.lock_timeout)
        with turn, engine.connect() as connection:
            current = _current_revision(connection)
            connection.rollback()
            if current == _resolve(revision):
                return False
            _refuse_unknown(current)
            _upgrade(connection, revision)
            return True
    finally:
        engine.dispose()


def require_current_schema(engine: Engine) -> None:
    """Refuse a schema that is behind or ahead of this code.

    Raises:
        PreconditionFailed: names both revisions and the fix.
    """
    with engine.connect() as connection:
        current = _current_revision(connection)
    head = _resolve("head")
    if current == head:
        return
    _refuse_unknown(current)
    raise PreconditionFailed(
        f"The database's schema is behind this code ({current or 'empty'} < {head}); run `ticketflow migrate`."
    )


def _upgrade(connection: Connection, revision: str) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "ticketflow_orch:migrations")
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, revision)
    except PendingRollbackError as error:
        # Alembic commits on its way out of a step that has lost its connection, and would hide that it has.
        raise error.__context__ or error from None


def _refuse_unknown(current: str | None) -> None:
    if current is not None and current not in revisions():
        raise PreconditionFailed(
            f"The database's schema is ahead of this code (revision {current} is unknown here); "
            "upgrade ticketflow-orch to the version that migrated it."
        )


def _current_revision(connection: Connection) -> str | None:
    if connection.exec_driver_sql("SELECT to_regclass('alembic_version')").scalar_one() is None:
        return None
    return connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one_or_none()


def _resolve(revision: str) -> str:
    return revisions()[-1] if revision == "head" else revision


@cache
def revisions() -> tuple[str, ...]:
    """All revisions of the schema, oldest first, by the names of their files.

    Every process asks for the newest one: Alembic would load them all, and takes longer to import than most need.
    """
    names = (file.name for file in files("ticketflow_orch.migrations").joinpath("versions").iterdir())
    return tuple(sorted(name.partition("_")[0] for name in names if name.endswith(".py")))
