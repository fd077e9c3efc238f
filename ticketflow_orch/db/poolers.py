"""Poolers between us and the server: whether one is there, whether it keeps sessions, and settings that it swallows.

A pooler gives a session a number of its own, where a server gives the id of the process that serves it. One that lends
a server's process for a single transaction (PgBouncer's `pool_mode = transaction`) drops limits on statements and
locks, or gives them to somebody else, without a word. So it is refused.
"""

from __future__ import annotations

import re
import select
from typing import Any, cast

import psycopg
from psycopg import sql
from sqlalchemy.engine.interfaces import Dialect

from ticketflow_orch.errors import PreconditionFailed

# `-c name=value` of libpq's options; a backslash keeps what follows it together.
OPTION = re.compile(r"-c\s*([A-Za-z_.]+)=((?:\\.|[^\\\s])*)")
# By host, port and database: whether a pooler answered there, asked once in a process.
_POOLED: dict[tuple[str, int, str], bool] = {}
# How soon a server ends a session that does nothing, in milliseconds, and how long we wait for that, in seconds.
_IDLE = 100
_PATIENCE = 1.0
_ATTEMPTS = 10


def open_session(dialect: Dialect, record: object, arguments: list[Any], options: dict[str, Any]) -> psycopg.Connection:
    """A new session: SQLAlchemy's `do_connect`. Where a pooler is in between it has the settings that were asked for.

    Raises:
        PreconditionFailed: a pooler is in between that does not keep sessions together.
    """
    del record
    session = cast("psycopg.Connection", dialect.connect(*arguments, **options))
    try:
        place = (session.info.host, session.info.port, session.info.dbname)
        if place not in _POOLED:
            pooled = session.info.backend_pid != _process(session)
            if pooled:
                _require_sessions(session, place)
                session.close()
                session = cast("psycopg.Connection", dialect.connect(*arguments, **options))
            _POOLED[place] = pooled
        if _POOLED[place]:
            _set(session, str(options.get("options", "")))
    except BaseException:
        session.close()
        raise
    return session


def unescaped(value: str) -> str:
    """The value of an option as it was meant."""
    return re.sub(r"\\(.)", r"\1", value)


def _process(session: psycopg.Connection) -> int:
    """The id of the server's process that answers; in a transaction of its own."""
    session.autocommit = True
    row = session.execute("SELECT pg_backend_pid()", prepare=False).fetchone()
    session.autocommit = False
    return 0 if row is None else int(row[0])


def _require_sessions(session: psycopg.Connection, place: tuple[str, int, str]) -> None:
    """See whether the end of the server's process is the end of `session`, which it is where the two belong together.

    The server is asked to end the process when it has nothing to do. Where another answers afterwards, sessions are
    not kept. That process ends in any case, and takes what was set in it along.
    """
    try:
        session.autocommit = True
        session.execute(f"SET idle_session_timeout = {_IDLE}", prepare=False)
        first = _process(session)
        for _ in range(_ATTEMPTS):
            # There is something to read as soon as the session is over.
            select.select([session.fileno()], [], [], _PATIENCE)
            if _process(session) != first:
                host, port, database = place
                raise PreconditionFailed(
                    f"The pooler at {host}:{port} lends a connection for a transaction at a time, which drops the "
                    f"limits on statements and locks; set pool_mode = session for database {database!r}, or name the "
                    "server itself."
                )
    except psycopg.OperationalError:
        # The session went with its process.
        return


def _set(session: psycopg.Connection, options: str) -> None:
    """Set what `options` ask for again: a pooler passes none of them on, or not all."""
    asked = OPTION.findall(options)
    if not asked:
        return
    calls = [
        sql.SQL("set_config({}, {}, false)").format(sql.Literal(name), sql.Literal(unescaped(value)))
        for name, value in asked
    ]
    session.autocommit = True
    session.execute(sql.SQL("SELECT {}").format(sql.SQL(", ").join(calls)), prepare=False)
    session.autocommit = False
