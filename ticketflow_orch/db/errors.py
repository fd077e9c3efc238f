"""What a database refuses or cannot do: by SQLSTATE, whose fault it is, and in one sentence.

All that is known of SQLSTATEs stands here, by psycopg's classes of errors; others ask `is_a`, or whose fault it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import psycopg
from psycopg.errors import (
    DiskFull,
    IdleInTransactionSessionTimeout,
    InsufficientPrivilege,
    LockNotAvailable,
    QueryCanceled,
    ReadOnlySqlTransaction,
    TransactionTimeout,
    UndefinedColumn,
    UndefinedFunction,
    UndefinedTable,
)
from sqlalchemy.exc import DBAPIError, PendingRollbackError

from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.formatting.text import without_addresses


@dataclass(frozen=True, slots=True)
class _Cause:
    """`what` is said, and what to do; `is_refusal`: a precondition was refused. Anything else passes by itself."""

    what: str
    fix: str
    is_refusal: bool = False


# The driver's own errors about connections have no SQLSTATE.
_LOST = "08"
_SCHEMA_IS_INCOMPLETE = _Cause(
    "The database lacks a part of its schema", "restore it from a backup; `ticketflow audit` judges it", is_refusal=True
)
# By the whole of an SQLSTATE, which counts first, or by its class.
_CAUSES: dict[str | None, _Cause] = {
    ReadOnlySqlTransaction.sqlstate: _Cause(
        "The database takes no writes", "name the primary server, or have it made writable", is_refusal=True
    ),
    IdleInTransactionSessionTimeout.sqlstate: _Cause(
        "The database ended a transaction that nobody worked on", "run the command again"
    ),
    TransactionTimeout.sqlstate: _Cause(
        "The database ended a transaction that took too long",
        "have its transaction_timeout raised, then run the command again",
    ),
    InsufficientPrivilege.sqlstate: _Cause(
        "The database's role may not do this", "run the command as a role that may, or have it granted", is_refusal=True
    ),
    UndefinedTable.sqlstate: _SCHEMA_IS_INCOMPLETE,
    UndefinedColumn.sqlstate: _SCHEMA_IS_INCOMPLETE,
    UndefinedFunction.sqlstate: _SCHEMA_IS_INCOMPLETE,
    DiskFull.sqlstate: _Cause("The database's disk is full", "make room there, then run the command again"),
    LockNotAvailable.sqlstate: _Cause(
        "Another session holds on to what this needs", "run the command again when it has ended"
    ),
    QueryCanceled.sqlstate: _Cause(
        "The database cancelled a statement", "run the command again, if nobody cancelled it on purpose"
    ),
    "53": _Cause("The database has no room left for this", "relieve its server, then run the command again"),
    "58": _Cause("The database's server could not read or write", "see its log"),
    "40": _Cause("Another session changed the same rows at the same moment", "run the command again"),
    "57": _Cause("The database's server is going down or coming up", "run the command again when it is up"),
    _LOST: _Cause("The connection to the database was lost", "run the command again when it answers"),
}
# A data exception, an integrity violation, a key beyond all bounds, what somebody's trigger raises.
_DATA = {"22", "23", "54", "P0"}
# What is no row's fault: connections, transactions, logins, conflicts with others, and a server that has no room, is
# stopped or cannot read its files.
_NO_ROW_S = {"08", "25", "28", "2D", "3B", "3D", "40", "53", "57", "58", "F0"}
# A statement that is wrong, or that may not be run: ours for all rows, where it is not one of a trigger's.
_STATEMENT_S = "42"
# SQLAlchemy's own code of a statement on a connection that was cut in one before it.
_AFTER_CUT = "8s2b"
_LONGEST_REASON = 300


def sqlstate(error: BaseException) -> str | None:
    """The SQLSTATE of what the server said, by whatever driver it was raised, if it said anything."""
    original = getattr(error, "orig", None) or error
    return getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)


def is_a(error: BaseException, *kinds: type[psycopg.Error]) -> bool:
    """Whether `error` is one of these kinds of psycopg's, or SQLAlchemy raised it for one."""
    return isinstance(getattr(error, "orig", None) or error, kinds)


def is_locked(error: BaseException) -> bool:
    """Whether `error` is that another session kept a lock for longer than this one waits."""
    return is_a(error, LockNotAvailable)


def server_message(error: DBAPIError) -> str | None:
    """What the server said, without its details, which repeat whole rows; None: the driver said it, or nobody."""
    primary: str | None = getattr(getattr(error.orig, "diag", None), "message_primary", None)
    return primary


def is_data_fault(error: DBAPIError) -> bool:
    """Whether rows' own data made a statement fail: a data exception, an integrity violation, an endless key.

    Or a value that Postgres holds and Python cannot, such as an infinite instant; or somebody's trigger, but no guard
    of the schema: what those refuse is wrong for any row.
    """
    state = sqlstate(error)
    if state is None:
        return is_a(error, psycopg.DataError)
    return state[:2] in _DATA


def is_row_fault(error: DBAPIError) -> bool:
    """Whether a row explains why a statement failed: its own data, or what somebody's trigger says of it.

    That is whatever is not the connection's, the server's or the statement's own.
    """
    state = sqlstate(error)
    if state is None:
        return is_a(error, psycopg.DataError)
    if state[:2] == _STATEMENT_S:
        return bool(getattr(getattr(error.orig, "diag", None), "context", None))
    return not is_locked(error) and state[:2] not in _NO_ROW_S


@dataclass(frozen=True, slots=True)
class DatabaseFault:
    """One sentence; `is_refusal`: a precondition does not hold, and nothing is tried again before somebody acts."""

    sentence: str
    is_refusal: bool

    @property
    def is_transient(self) -> bool:
        """Whether it passes by itself as a rule, so that the same work may succeed a moment later."""
        return not self.is_refusal


def database_fault(error: BaseException) -> DatabaseFault | None:
    """What is said of an error of the database, by whatever driver it was raised; None: it is no state of a server."""
    if isinstance(error, PendingRollbackError) and error.code == _AFTER_CUT:
        lost = _CAUSES[_LOST]
        return DatabaseFault(f"{lost.what} in an earlier statement; {lost.fix}.", lost.is_refusal)
    original = getattr(error, "orig", None) or error
    if type(original).__module__.partition(".")[0] not in {"psycopg", "psycopg2"}:
        return None
    state = sqlstate(error)
    kinds = {kind.__name__ for kind in type(original).__mro__}
    if state is None and not kinds.isdisjoint({"OperationalError", "InterfaceError"}):
        state = _LOST
    cause = _CAUSES.get(state or "") or _CAUSES.get((state or "")[:2])
    if cause is None:
        return None
    return DatabaseFault(f"{cause.what} ({_said(original)}); {cause.fix}.", cause.is_refusal)


def _said(original: BaseException) -> str:
    """The server's own words, without the statement and its values."""
    primary = getattr(getattr(original, "diag", None), "message_primary", None)
    lines = str(primary or original).strip().splitlines() or [type(original).__name__]
    return lines[0].rsplit("failed: ", 1)[-1].removeprefix("FATAL:").strip().rstrip(".")


def is_one_row_s(error: Exception) -> bool:
    """Whether a row explains `error`, or somebody's trigger on it; a database or a place that is away concerns all."""
    if isinstance(error, DBAPIError):
        return is_row_fault(error)
    return isinstance(error, TicketflowError | ArithmeticError | LookupError | TypeError | ValueError)


def in_words(error: BaseException) -> str:
    """What is wrong with a row, in the database's words or ours, in one line: never what stands in it.

    Of what Postgres says that is the message alone, since its details repeat whole rows; and no message keeps the value
    of a data exception, or an address.
    """
    if isinstance(error, DBAPIError):
        words = str(server_message(error) or error.orig).split("\nDETAIL:")[0]
        state = sqlstate(error)
        if state is None or state.startswith("22"):
            words = _VALUE.sub("", words)
    else:
        words = str(error)
    words = " ".join(without_addresses(words).split()) or type(error).__name__
    return words if len(words) <= _LONGEST_REASON else f"{words[:_LONGEST_REASON]}…"


# In messages such as: invalid input syntax for type integer: "12x".
_VALUE = re.compile(r""":? *("[^"]*"|'[^']*')""")
