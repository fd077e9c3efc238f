"""How this project talks to Postgres: engines with bounded sessions, transactions that cannot lose work silently."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import psycopg
from psycopg import sql
from psycopg.errors import UniqueViolation
from psycopg.pq import TransactionStatus
from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from ticketflow_orch.db.errors import is_a
from ticketflow_orch.db.hosts import split_hosts, with_hosts
from ticketflow_orch.db.poolers import OPTION, open_session, unescaped
from ticketflow_orch.errors import InvalidInput

Result = TypeVar("Result")

# What a session must be like for a statement to mean the same everywhere, whatever server, database or role would have
# it. A query that row security would answer with half of the rows fails instead.
_PINNED = {
    "timezone": "UTC",
    "jit": "off",
    "search_path": "public,pg_temp",
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
    "datestyle": "ISO,MDY",
    "intervalstyle": "postgres",
    "standard_conforming_strings": "on",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "array_nulls": "on",
    "transform_null_equals": "off",
    "row_security": "off",
    # Definitions are compared as they are written out.
    "quote_all_identifiers": "off",
}
# The bounds too; what else a URL asks for is not ours to judge.
_JUDGED = {*_PINNED, "statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"}
# Those that a variable of libpq sets after our options have, and that the server reports without being asked.
_REPORTED = {"TimeZone": "UTC", "DateStyle": "ISO, MDY", "IntervalStyle": "postgres"}
# What only an administrator may set, or must be free to: it is said, not overridden.
_EXPECTED = {"session_replication_role": {"origin"}, "default_transaction_read_only": {"off"}}
_DURABLE = "synchronous_commit"
# How long a server may be silent before its connection counts as gone, in seconds, and how that is found out: nobody
# acknowledges what was sent, or answers when nothing is.
_SILENCE = 60
TCP = {
    # For each of a URL's hosts: one that is gone answers nothing at all.
    "connect_timeout": "10",
    "keepalives": "1",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": str(_SILENCE * 1000),
}
_CLOCK_QUESTIONS = 3
_QUICK_ANSWER = timedelta(seconds=1)
# Patience with a database that is away, in seconds after the first failure: of work that comes by the day, and of work
# that the next minute does anyway, which must not outlive the minute jobs' bound.
PATIENCE = 300.0
SHORT_PATIENCE = 30.0
# Under which an engine knows for how many seconds its work is retried; see `retrying`.
PATIENCE_OPTION = "ticketflow_patience"


class SwallowedError(RuntimeError):
    """A statement failed inside a transaction and the code went on: committing would lose the work without a word."""


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Bounds that the server puts on a session, in seconds; 0 switches one off."""

    statement_timeout: float = 30 * 60
    lock_timeout: float = 60
    # Shorter than any lease: a worker frozen inside a transaction loses it instead of blocking everyone.
    idle_in_transaction_timeout: float = 60

    def options(self) -> str:
        """The libpq `options` that set them and pin what statements depend on, JIT off: it costs more than it saves."""
        parameters = _PINNED | {
            "statement_timeout": round(self.statement_timeout * 1000),
            "lock_timeout": round(self.lock_timeout * 1000),
            "idle_in_transaction_session_timeout": round(self.idle_in_transaction_timeout * 1000),
        }
        return " ".join(f"-c {name}={_escaped(str(value))}" for name, value in parameters.items())


def parse_url(given: str, variable: str = "TICKETFLOW_DATABASE_URL") -> URL:
    """A Postgres URL from what was `given`, whatever driver it names; `variable` says in errors where it came from.

    Several hosts may stand where psql or SQLAlchemy wants them. Of these the one that takes writes is meant.

    Raises:
        InvalidInput: not a URL, or not one of Postgres. The text itself is not repeated: it may hold a password.
    """
    example = "postgresql://user:password@host:5432/ticketflow"
    try:
        url = make_url(split_hosts(given))
    except (ArgumentError, ValueError):
        raise InvalidInput(f"{variable} is not a database URL; write it like {example}.") from None
    if url.get_backend_name() not in {"postgresql", "postgres"} or not url.database:
        raise InvalidInput(f"{variable} must name a Postgres database; write it like {example}.")
    if "@" in (url.host or ""):
        raise InvalidInput(f"{variable} has more than one @; write one that belongs to the password or role as %40.")
    try:
        return with_hosts(url)
    except ValueError as error:
        several = "postgresql://user:password@db1:5432,db2:5432/ticketflow?target_session_attrs=read-write"
        raise InvalidInput(f"{variable} names its hosts wrongly ({error}); write it like {several}.") from None


def connect_engine(
    url: str | URL,
    application: str,
    *,
    limits: SessionLimits | None = None,
    connections: int = 5,
    patience: float = 0,
) -> Engine:
    """An engine on psycopg 3 whose sessions carry `application` as application_name and the given limits.

    A server that falls silent is given up after a minute; what `url` says of keepalives wins. `connections` bounds how
    many may be open at once. `application` names the work and, where there is one, its window, so that an operator sees
    in pg_stat_activity what a session is for. `patience`: for how many seconds after a first failure steps that are
    `retried` on it are done again.
    """
    url = parse_url(url) if isinstance(url, str) else url
    given = str(url.query.get("options", ""))
    options = " ".join(part for part in (given, (limits or SessionLimits()).options()) if part)
    engine = create_engine(
        url.set(drivername="postgresql+psycopg").difference_update_query(["options"]),
        pool_size=connections,
        max_overflow=0,
        pool_pre_ping=True,
        # An error is logged and shown: what was to be written stands in no log.
        hide_parameters=True,
        # No column has one, and each engine would ask for its type.
        use_native_hstore=False,
        # Said with each BEGIN as well: a pooler may take no options.
        isolation_level="READ COMMITTED",
        connect_args={
            "application_name": application[:63],
            "options": options,
            "client_encoding": "UTF8",
            **{name: value for name, value in TCP.items() if name not in url.query},
        },
        execution_options={PATIENCE_OPTION: patience},
    )
    event.listen(engine, "do_connect", open_session)
    event.listen(engine, "connect", _pin_reported)
    return engine


def session_faults(connection: Connection) -> tuple[str, ...]:
    """How this session differs from what was asked for when it was opened, or from what money needs, in words.

    A pooler may have dropped what was asked for; some settings are an administrator's, and are only reported.
    """
    driver = connection.connection.driver_connection
    given = driver.info.get_parameters().get("options", "") if isinstance(driver, psycopg.Connection) else ""
    # Of a name that is given twice the last counts.
    asked = {name.lower(): unescaped(value) for name, value in OPTION.findall(given)}
    found = {row.name.lower(): row.setting for row in connection.exec_driver_sql(_SETTINGS)}
    swallowed = [
        f"{name} is {found[name]!r} in this session, though {value!r} was asked for: a pooler or a role has changed it"
        for name, value in asked.items()
        if name in _JUDGED and _plain(found[name]) != _plain(value)
    ]
    reported = [
        f"{name} is {found[name]!r} for this session: ask who set it, for the database, the role or the server"
        for name, allowed in _EXPECTED.items()
        if found[name] not in allowed
    ]
    if found[_DURABLE] in {"off", "local"}:
        reported.append(
            f"{_DURABLE} is {found[_DURABLE]!r}: what was committed may be lost in a crash, after it was sent"
        )
    return (*swallowed, *reported)


@contextmanager
def transaction(engine: Engine) -> Iterator[Connection]:
    """One transaction that commits when the block ends and rolls back when it raises.

    Postgres answers COMMIT of a failed transaction with ROLLBACK and no driver raises on it: code that catches a
    database error and goes on would lose its work without a word. Here that is an error.

    Raises:
        SwallowedError: a statement failed inside the block, whatever the code around it caught.
    """
    with engine.begin() as connection:
        yield connection
        refuse_swallowed_error(connection)


def unless_known(connection: Connection, write: Callable[[], Result], otherwise: Callable[[], Result]) -> Result:
    """What `write` gives, or where a key that it writes is there already, what `otherwise` gives in its place.

    The other writer of that key has committed by then, so a statement that looks for it finds it.
    """
    try:
        with connection.begin_nested():
            return write()
    except DBAPIError as error:
        if not is_a(error, UniqueViolation):
            raise
        return otherwise()


def clocks(connection: Connection) -> tuple[datetime, float]:
    """The database's clock, and by how many seconds this host's is ahead of it (negative: behind).

    Asked again when the answer was slow: the difference is known to half the time that it took.
    """
    for _ in range(_CLOCK_QUESTIONS):
        before = datetime.now(UTC)
        database_now: datetime = connection.exec_driver_sql("SELECT clock_timestamp()").scalar_one()
        after = datetime.now(UTC)
        if after - before < _QUICK_ANSWER:
            break
    return database_now, (before + (after - before) / 2 - database_now).total_seconds()


def _pin_reported(session: psycopg.Connection, _: object) -> None:
    # A PGTZ or PGDATESTYLE in the environment reaches the server after our options do, and wins.
    off = {name: value for name, value in _REPORTED.items() if session.info.parameter_status(name) != value}
    for name, value in off.items():
        session.execute(sql.SQL("SET {} = {}").format(sql.Identifier(name), sql.Literal(value)))
    if off:
        session.commit()


# `options` is split at spaces, unless a backslash stands before them.
def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(" ", "\\ ")


def _plain(value: str) -> str:
    return value.replace(" ", "").lower()


def refuse_swallowed_error(connection: Connection) -> None:
    """Raise SwallowedError when a statement of the running transaction has failed; see `transaction`."""
    driver = connection.connection.driver_connection
    if isinstance(driver, psycopg.Connection) and driver.info.transaction_status == TransactionStatus.INERROR:
        raise SwallowedError("a statement failed inside this transaction and the error was swallowed")


# Timeouts in milliseconds, as they are asked for.
_SETTINGS = "SELECT name, setting FROM pg_settings"
