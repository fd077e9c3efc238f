"""Steps that change a large live table without stopping its readers and writers, each safe to repeat.

Every function takes a connection in AUTOCOMMIT: one statement is one transaction, and a step that failed half-way
leaves only what its docstring says, which the next try mends.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError, OperationalError

from ticketflow_orch.errors import InputError

LOCK_NOT_AVAILABLE = "55P03"


def with_short_lock(
    connection: Connection, statements: str, *, table: str, timeout: float = 1.0, attempts: int = 30, pause: float = 1.0
) -> None:
    """Run quick DDL that needs ACCESS EXCLUSIVE on `table`, waiting at most `timeout` seconds for it at a time.

    While such a statement waits, every later reader queues behind it; so it gives way, pauses and tries again.
    Several `statements` are one transaction. A try that failed leaves nothing behind.

    Raises:
        InputError: `attempts` tries found the table in use; names the sessions that held it.
    """
    script = f"BEGIN; SET LOCAL lock_timeout = '{round(timeout * 1000)}ms'; {statements}; COMMIT"
    for attempt in range(1, attempts + 1):
        try:
            connection.exec_driver_sql(script)
            return
        except OperationalError as error:
            connection.exec_driver_sql("ROLLBACK")
            if getattr(error.orig, "sqlstate", None) != LOCK_NOT_AVAILABLE:
                raise
        if attempt < attempts:
            time.sleep(pause)
    raise InputError(
        f"Table {table} stayed in use by {_holders(connection, table)} through {attempts} tries of {timeout:g} s; "
        "let them finish or end them, then run `ticketflow migrate` again."
    )


def build_unique_index(connection: Connection, name: str, table: str, columns: Sequence[str]) -> None:
    """A valid and ready UNIQUE index `name`, built CONCURRENTLY; a leftover of a failed try is dropped first.

    A try that meets duplicates leaves an invalid index that enforces nothing; one cancelled late leaves an invalid
    index that already refuses duplicates. Neither counts as built, and `IF NOT EXISTS` would take both for done.

    Raises:
        InputError: the table holds duplicates.
    """
    if index_state(connection, name) == (True, True):
        return
    # Without a lock_timeout: waiting for older transactions is what CONCURRENTLY does, and it blocks nobody.
    connection.exec_driver_sql("SET lock_timeout = 0; SET statement_timeout = 0")
    connection.exec_driver_sql(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
    try:
        connection.exec_driver_sql(f"CREATE UNIQUE INDEX CONCURRENTLY {name} ON {table} ({', '.join(columns)})")
    except IntegrityError as error:
        detail = getattr(getattr(error.orig, "diag", None), "message_detail", None)
        raise InputError(
            f"Table {table} still holds duplicates, so {name} is not unique ({detail}); "
            "run `ticketflow migrate` again: it numbers them and builds the index anew."
        ) from error
    if index_state(connection, name) != (True, True):
        raise InputError(f"Index {name} was built but is not valid; run `ticketflow migrate` again.")


def index_state(connection: Connection, name: str) -> tuple[bool, bool] | None:
    """Whether index `name` is (valid, ready); None when there is none."""
    row = connection.execute(
        text("SELECT indisvalid, indisready FROM pg_index WHERE indexrelid = to_regclass(CAST(:name AS text))"),
        {"name": name},
    ).one_or_none()
    return None if row is None else (row.indisvalid, row.indisready)


def _holders(connection: Connection, table: str) -> str:
    rows = connection.execute(
        text("""
            SELECT DISTINCT pid, coalesce(nullif(application_name, ''), 'unnamed') AS application
            FROM pg_locks JOIN pg_stat_activity USING (pid)
            WHERE relation = CAST(:table AS regclass) AND granted AND pid <> pg_backend_pid()
            ORDER BY pid
        """),
        {"table": table},
    ).all()
    return ", ".join(f"process {row.pid} ({row.application})" for row in rows) or "a session that has just ended"
