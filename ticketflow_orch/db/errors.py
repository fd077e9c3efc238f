"""What a database refuses or cannot do, said in one sentence: states of the server, not faults of the program."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sqlalchemy.exc import DBAPIError, PendingRollbackError

from ticketflow_orch.db.engine import is_row_fault, sqlstate
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.formatting.text import without_addresses

# By the class of an SQLSTATE, or the whole of it, which counts first: whether it is a precondition that was refused
# (True), or an outage; what is said, and what to do.
_CAUSES: dict[str, tuple[bool, str, str]] = {
    "25006": (True, "The database takes no writes", "name the primary server, or have it made writable"),
    "25P03": (False, "The database ended a transaction that nobody worked on", "run the command again"),
    "25P04": (
        False,
        "The database ended a transaction that took too long",
        "have its transaction_timeout raised, then run the command again",
    ),
    "42501": (True, "The database's role may not do this", "run the command as a role that may, or have it granted"),
    "42P01": (
        True,
        "The database lacks a part of its schema",
        "restore it from a backup; `ticketflow audit` judges it",
    ),
    "42703": (
        True,
        "The database lacks a part of its schema",
        "restore it from a backup; `ticketflow audit` judges it",
    ),
    "42883": (
        True,
        "The database lacks a part of its schema",
        "restore it from a backup; `ticketflow audit` judges it",
    ),
    "53100": (False, "The database's disk is full", "make room there, then run the command again"),
    "53": (False, "The database has no room left for this", "relieve its server, then run the command again"),
    "58": (False, "The database's server could not read or write", "see its log"),
    "55P03": (False, "Another session holds on to what this needs", "run the command again when it has ended"),
    "40": (False, "Another session changed the same rows at the same moment", "run the command again"),
    "57014": (False, "The database cancelled a statement", "run the command again, if nobody cancelled it on purpose"),
    "57": (False, "The database's server is going down or coming up", "run the command again when it is up"),
    "08": (False, "The connection to the database was lost", "run the command again when it answers"),
}
# The driver's own errors about connections have no SQLSTATE.
_LOST = "08"
# SQLAlchemy's own code of a statement on a connection that was cut in one before it.
_AFTER_CUT = "8s2b"
_LONGEST_REASON = 300
# What passes by itself: a connection that was cut, a rollback for the sake of others, a lock, a server without room, or
# that goes down or comes up, or cannot reach its files; a session that was ended because its host slept.
_TRANSIENT = frozenset({"08", "25P03", "25P04", "40", "53", "55P03", "57", "58"})


@dataclass(frozen=True, slots=True)
class DatabaseFault:
    """One sentence; `is_refusal`: a precondition does not hold, and nothing is tried again before somebody acts.

    `is_transient`: it passes by itself as a rule, so that the same work may succeed a moment later.
    """

    sentence: str
    is_refusal: bool
    is_transient: bool


def database_fault(error: BaseException) -> DatabaseFault | None:
    """What is said of an error of the database, by whatever driver it was raised; None: it is no state of a server."""
    if isinstance(error, PendingRollbackError) and error.code == _AFTER_CUT:
        _, what, fix = _CAUSES[_LOST]
        return DatabaseFault(f"{what} in an earlier statement; {fix}.", is_refusal=False, is_transient=True)
    original = getattr(error, "orig", None) or error
    if type(original).__module__.partition(".")[0] not in {"psycopg", "psycopg2"}:
        return None
    state = getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)
    kinds = {kind.__name__ for kind in type(original).__mro__}
    if state is None and not kinds.isdisjoint({"OperationalError", "InterfaceError"}):
        state = _LOST
    cause = _CAUSES.get(state or "") or _CAUSES.get((state or "")[:2])
    if cause is None:
        return None
    is_refusal, what, fix = cause
    is_transient = not _TRANSIENT.isdisjoint({state or "", (state or "")[:2]})
    return DatabaseFault(f"{what} ({_said(original)}); {fix}.", is_refusal, is_transient)


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
        primary = getattr(getattr(error.orig, "diag", None), "message_primary", None)
        words = str(primary or error.orig).split("\nDETAIL:")[0]
        state = sqlstate(error)
        if state is None or state.startswith("22"):
            words = _VALUE.sub("", words)
    else:
        words = str(error)
    words = " ".join(without_addresses(words).split()) or type(error).__name__
    return words if len(words) <= _LONGEST_REASON else f"{words[:_LONGEST_REASON]}…"


# In messages such as: invalid input syntax for type integer: "12x".
_VALUE = re.compile(r""":? *("[^"]*"|'[^']*')""")
