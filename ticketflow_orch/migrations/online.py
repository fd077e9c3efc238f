"""Steps that change a large live table without stopping its readers and writers, each safe to repeat.

Every function takes a connection in AUTOCOMMIT: one statement is one transaction, and a step that failed half-way
leaves only what its docstring says, which the next try mends.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, Row, text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from ticketflow_orch.errors import InvalidInput

LOCK_NOT_AVAILABLE = "55P03"
DEADLOCK_DETECTED = "40P01"
# Longer than deadlock_timeout (1 s): only then does Postgres send an autovacuum away that is in the way, and a table
# whose rows were all just numbered has one for certain.
LOCK_TIMEOUT = 1.5


def with_short_lock(
    connection: Connection,
    statements: str,
    *,
    table: str,
    timeout: float = LOCK_TIMEOUT,
    attempts: int = 30,
    pause: float = 1.0,
) -> None:
    """Run quick DDL that needs ACCESS EXCLUSIVE on `table`, waiting at most `timeout` seconds for it at a time.

    While such a statement waits, every later reader queues behind it; so it gives way, pauses and tries again. So it
    does when it and somebody else wait for each other.
    Several `statements` are one transaction. A try that failed leaves nothing behind.

    Raises:
        InvalidInput: `attempts` tries found the table in use; names the sessions that held it.
    """
    script = f"BEGIN; SET LOCAL lock_timeout = '{round(timeout * 1000)}ms'; {statements}; COMMIT"
    for attempt in range(1, attempts + 1):
        try:
            connection.exec_driver_sql(script)
        except OperationalError as error:
            if _sqlstate(error) not in {LOCK_NOT_AVAILABLE, DEADLOCK_DETECTED}:
                raise
            connection.exec_driver_sql("ROLLBACK")
        else:
            return
        if attempt < attempts:
            time.sleep(pause)
    raise InvalidInput(
        f"Table {table} stayed in use by {_holders(connection, table)} through {attempts} tries of {timeout:g} s; "
        "let them finish or end them, then run `ticketflow migrate` again."
    )


def refit(
    connection: Connection,
    name: str,
    table: str,
    conditions: Mapping[str, str],
    edges: Mapping[str, tuple[str, str]],
) -> None:
    """A validated check constraint `name`, that the `conditions` on columns hold; values beyond are moved to an edge.

    `edges`: the least and the greatest value of each column that is moved. A try that failed leaves the constraint
    behind, which judges what is written from then on.

    Raises:
        InvalidInput: a row cannot be moved, because somebody's trigger or constraint refuses it; names the row.
    """
    check = " AND ".join(conditions.values())
    with_short_lock(
        connection,
        f"ALTER TABLE {table} DROP CONSTRAINT IF EXISTS {name}, ADD CONSTRAINT {name} CHECK ({check}) NOT VALID",
        table=table,
    )
    moved = ", ".join(
        f"{column} = CASE WHEN {condition} OR {column} IS NULL THEN {column} "
        f"ELSE least(greatest({column}, '{edges[column][0]}'), '{edges[column][1]}') END"
        for column, condition in conditions.items()
    )
    find = f"SELECT id FROM {table} WHERE NOT ({check}) ORDER BY id"  # noqa: S608 - what migrations say
    move = text(f"UPDATE {table} SET {moved} WHERE id = :id")  # noqa: S608
    for row in connection.exec_driver_sql(find).scalars().all():
        try:
            connection.execute(move, {"id": row})
        except DBAPIError as error:
            why = getattr(getattr(error.orig, "diag", None), "message_primary", None)
            raise InvalidInput(
                f"Row {row} of table {table} has a value that no calendar has, and it cannot be changed ({why}); "
                "correct it, then run `ticketflow migrate` again."
            ) from error
    with_short_lock(connection, f"ALTER TABLE {table} VALIDATE CONSTRAINT {name}", table=table)


def build_index(
    connection: Connection,
    name: str,
    table: str,
    columns: Sequence[str],
    *,
    unique: bool = False,
    include: Sequence[str] = (),
    method: str = "btree",
    where: str | None = None,
) -> None:
    """A valid and ready index `name`, built CONCURRENTLY; a leftover of a failed try is dropped first.

    A try that meets duplicates leaves an invalid index that enforces nothing; one that is cancelled or loses patience
    while it waits for older transactions leaves an invalid index that already refuses duplicates. Neither counts as
    built, and `IF NOT EXISTS` would take both for done.

    Raises:
        InvalidInput: the table holds duplicates, or transactions older than the index outlasted the session's
            lock_timeout; names the first duplicate, or the transactions.
    """
    if index_state(connection, name) == (True, True):
        return
    drop_index(connection, name)
    kind = "UNIQUE INDEX" if unique else "INDEX"
    carried = f" INCLUDE ({', '.join(include)})" if include else ""
    only = f" WHERE {where}" if where else ""
    rows = f"{table} USING {method} ({', '.join(columns)}){carried}{only}"
    try:
        _concurrently(connection, f"CREATE {kind} CONCURRENTLY {name} ON {rows}")
    except IntegrityError as error:
        detail = getattr(getattr(error.orig, "diag", None), "message_detail", None)
        raise InvalidInput(
            f"Table {table} still holds duplicates, so {name} is not unique ({detail}); "
            "run `ticketflow migrate` again: it numbers them and builds the index anew."
        ) from error


def drop_index(connection: Connection, name: str) -> None:
    """Drop index `name` CONCURRENTLY, valid or not; done already is done.

    Raises:
        InvalidInput: transactions older than this outlasted the session's lock_timeout; the index is left invalid.
    """
    _concurrently(connection, f"DROP INDEX CONCURRENTLY IF EXISTS {name}")


def index_state(connection: Connection, name: str) -> tuple[bool, bool] | None:
    """Whether index `name` is (valid, ready); None when there is none."""
    row = connection.execute(
        text("SELECT indisvalid, indisready FROM pg_index WHERE indexrelid = to_regclass(CAST(:name AS text))"),
        {"name": name},
    ).one_or_none()
    return None if row is None else (row.indisvalid, row.indisready)


def _concurrently(connection: Connection, statement: str) -> None:
    try:
        connection.exec_driver_sql(statement)
    except OperationalError as error:
        if _sqlstate(error) != LOCK_NOT_AVAILABLE:
            raise
        raise InvalidInput(
            f"An index waited in vain for older transactions to end, of {_older_transactions(connection)}; "
            "let them finish or end them, then run `ticketflow migrate` again."
        ) from None


def _sqlstate(error: OperationalError) -> str | None:
    return getattr(error.orig, "sqlstate", None)


def _older_transactions(connection: Connection) -> str:
    rows = connection.execute(
        text("""
            SELECT pid, coalesce(nullif(application_name, ''), backend_type) AS application
            FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid()
                AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
            ORDER BY xact_start
        """)
    ).all()
    return _named(rows)


def _holders(connection: Connection, table: str) -> str:
    rows = connection.execute(
        text("""
            SELECT DISTINCT pid, coalesce(nullif(application_name, ''), backend_type) AS application
            FROM pg_locks JOIN pg_stat_activity USING (pid)
            WHERE relation = CAST(:table AS regclass) AND datname = current_database()
                AND granted AND pid <> pg_backend_pid()
            ORDER BY pid
        """),
        {"table": table},
    ).all()
    return _named(rows)


def _named(rows: Sequence[Row[tuple[int, str]]]) -> str:
    return ", ".join(f"process {row.pid} ({row.application})" for row in rows) or "a session that has just ended"
