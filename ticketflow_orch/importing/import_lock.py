"""Imports and undos take turns: one at a time, in one transaction, in the way of nobody else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from psycopg.errors import (
    DeadlockDetected,
    ObjectNotInPrerequisiteState,
    SerializationFailure,
    UniqueViolation,
)
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from ticketflow_orch.db.engine import transaction
from ticketflow_orch.db.errors import is_a, is_locked, server_message
from ticketflow_orch.errors import Conflict

# A row that somebody else inserted, or changed, or closed, after our snapshot; or a deadlock.
_CHANGED_MEANWHILE = (UniqueViolation, SerializationFailure, ObjectNotInPrerequisiteState, DeadlockDetected)


@contextmanager
def import_turn(engine: Engine, *, deletes: bool = False) -> Iterator[Connection]:
    """A transaction in which no other import or undo runs; a second one waits as long as the engine's lock_timeout.

    All its statements see one state of the database, so that what was judged is what is inserted. A turn that `deletes`
    sees every settlement that runs; one that starts later waits for it.

    Raises:
        Conflict: the wait was too long, or another session changed the same rows at the same moment.
    """
    try:
        with transaction(engine) as connection:
            # An import may take long, and instants are shown in UTC whatever the session's settings. None of this takes
            # a snapshot yet: what the turn before this one did must be seen.
            connection.exec_driver_sql(
                "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SET LOCAL statement_timeout = 0;"
                " SET LOCAL timezone = 'UTC'; SET LOCAL work_mem = '64MB'"
            )
            connection.exec_driver_sql("LOCK TABLE data_import IN SHARE ROW EXCLUSIVE MODE")
            if deletes:
                # What a pass waits for before it reads.
                connection.exec_driver_sql("LOCK TABLE money_movement IN ROW EXCLUSIVE MODE")
            yield connection
    except DBAPIError as error:
        if is_locked(error):
            raise Conflict(
                "Another session, most likely another import, held on to what this one needs; "
                "nothing was changed, try again when it has ended."
            ) from error
        if is_a(error, *_CHANGED_MEANWHILE):
            raise Conflict(
                "Another session changed the same rows at the same moment "
                f"({server_message(error) or type(error.orig).__name__}); "
                "nothing was changed, try again."
            ) from error
        raise


def vacuum(engine: Engine, tables: Iterable[str]) -> None:
    """Make the next reader of `tables` quick: up-to-date statistics, and index-only scans that need no heap.

    Skips a table that another session is vacuuming already.
    """
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("SET statement_timeout = 0")
        try:
            for table in tables:
                connection.exec_driver_sql(f"VACUUM (ANALYZE, SKIP_LOCKED) {table}")
        finally:
            # A statement that is interrupted has its connection closed.
            if not connection.invalidated:
                connection.exec_driver_sql("RESET statement_timeout")
