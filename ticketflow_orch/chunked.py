"""Work on many rows in chunks: locked in key order, a transaction each, a bad row set aside instead of stopping all.

A chunk takes two steps in one transaction, because the second must look with fresh eyes: what committed while the first
waited for a row's lock is not in the first's snapshot.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Generic, TypeVar

from sqlalchemy import Connection, Engine, TextClause, text
from sqlalchemy.exc import DBAPIError, OperationalError

from ticketflow_orch.alerts import Alert
from ticketflow_orch.database import is_data_fault, transaction
from ticketflow_orch.errors import InputError
from ticketflow_orch.retrying import retried

LOCK_NOT_AVAILABLE = "55P03"
# As many bad rows are named at most, where all are counted.
NAMED = 100

Effect = TypeVar("Effect")
Key = TypeVar("Key")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rows a step is to lock: at most `size` that are due, without `left_out`, or those of `only` that still are.

    `waiting`: wait for rows that others have locked, instead of skipping them.
    """

    size: int
    left_out: Sequence[int | str] = ()
    only: Sequence[int] | None = None
    waiting: bool = False

    @property
    def parameters(self) -> dict[str, object]:
        """What `DUE_ROWS` binds."""
        only = None if self.only is None else list(self.only)
        return {"size": self.size, "left_out": list(self.left_out), "only": only}

    def locking(self, table: str) -> str:
        """The clause that locks the rows of `table`."""
        return f"FOR UPDATE OF {table}" + ("" if self.waiting else " SKIP LOCKED")


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row, by its id or name, whose own data keeps it from being done, and why, in the database's words or ours.

    `name`: what it is called outside, where its id is a number; after a restore that may be another row's.
    """

    id: int | str
    error: str
    name: str | None = None

    def alert(self, job: str) -> Alert:
        """What operators learn of a row that the runs of `job` leave out."""
        told = {"job": job, "row": self.called, "error": self.error}
        return Alert("RowLeftOut", f"{job} {self.called}", told, subject=job, recurs=True)

    @property
    def called(self) -> int | str:
        """What people know it by."""
        return self.id if self.name is None else self.name


def named(rows: Sequence[BadRow]) -> str:
    """What is wrong with each of `rows`, in sentences; of those beyond the first hundred how many they are."""
    more = f" And {len(rows) - NAMED:,} more." if len(rows) > NAMED else ""
    return " ".join(row.error for row in rows[:NAMED]) + more


@dataclass
class _Attempt(Generic[Effect]):
    """A chunk in hand: which rows it looks for, which it found, and what it did to them, if it came to that."""

    wanted: Wanted
    ids: list[int] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)

    def begin(self, ids: list[int]) -> None:
        """Hold on to the rows that were found first: another attempt asks what has become of them."""
        self.effects = []
        if not self.ids:
            self.ids, self.wanted = ids, replace(self.wanted, only=ids or self.wanted.only)

    def end(self, effects: list[Effect]) -> None:
        """Nothing but the COMMIT is left; another attempt waits for its end, where the server is still at it."""
        self.effects, self.wanted = effects, replace(self.wanted, waiting=True)


@dataclass
class ChunkedWork(Generic[Effect]):
    """All that is due, `size` rows a transaction: `take` locks rows and returns their ids, `apply` acts on them.

    A chunk is tried again while the database is away. Whether one whose COMMIT had no answer was committed, its rows
    tell: those that are done are not due any more.

    `name`: the query for what the row with an `:id` is called outside.
    """

    engine: Engine
    take: Callable[[Connection, Wanted], list[int]]
    apply: Callable[[Connection, list[int]], Effect]
    size: int
    bad: list[BadRow] = field(default_factory=list)
    name: TextClause | None = None

    def run(self) -> Iterator[Effect]:
        """The effect of each chunk, until nothing is due that nobody else has locked."""
        while True:
            ids, effects = self._chunk(Wanted(self.size, self._left_out))
            yield from effects
            if not ids:
                return

    def sweep(self, patience: float) -> Iterator[Effect]:
        """As `run`, but waiting up to `patience` seconds for a locked row; ends early when one stays locked."""
        try:
            while True:
                ids, effects = self._chunk(Wanted(self.size, self._left_out, waiting=True), patience)
                yield from effects
                if not ids:
                    return
        except OperationalError as error:
            if getattr(error.orig, "sqlstate", None) != LOCK_NOT_AVAILABLE:
                raise

    @property
    def _left_out(self) -> list[int | str]:
        return [row.id for row in self.bad]

    def _chunk(self, wanted: Wanted, patience: float | None = None) -> tuple[list[int], list[Effect]]:
        attempt = _Attempt[Effect](wanted)
        try:
            # A lock that is not to be had is for the sweep, or for the whole.
            return retried(self.engine, lambda: self._transact(attempt, patience), waiting=False)
        except DBAPIError as error:
            ids = attempt.ids
            if not ids or not is_data_fault(error):
                raise
            if len(ids) == 1:
                self.bad.append(BadRow(ids[0], in_words(error), self._name_of(ids[0])))
                return ids, []
        middle = len(ids) // 2
        halves = [self._chunk(Wanted(self.size, only=half), patience)[1] for half in (ids[:middle], ids[middle:])]
        return ids, [effect for effects in halves for effect in effects]

    def _transact(self, attempt: _Attempt[Effect], patience: float | None) -> tuple[list[int], list[Effect]]:
        with transaction(self.engine) as connection:
            if patience is not None:
                connection.execute(
                    text("SELECT set_config('lock_timeout', :patience, true)"),
                    {"patience": f"{round(patience * 1000)}ms"},
                )
            ids = self.take(connection, attempt.wanted)
            if len(ids) < len(attempt.ids) and attempt.effects:
                # Committed, though nobody answered.
                return attempt.ids, attempt.effects
            attempt.begin(ids)
            attempt.end([self.apply(connection, ids)] if ids else [])
        return attempt.ids, attempt.effects

    def _name_of(self, row: int) -> str | None:
        if self.name is None:
            return None
        with self.engine.connect() as connection:
            return connection.execute(self.name, {"id": row}).scalar_one_or_none()


def is_one_row_s(error: Exception) -> bool:
    """Whether a row's own data explains `error`; a database, a disk or a place that is away concerns all rows."""
    if isinstance(error, DBAPIError):
        return is_data_fault(error)
    return isinstance(error, InputError | ArithmeticError | LookupError | TypeError | ValueError)


@dataclass
class InKeyOrder(Generic[Key, Effect]):
    """All rows of a list that does not change, in the order of their keys, `size` a transaction.

    `step` does up to so many rows after a key: it returns the last one's key, or None where none is left, and what it
    did. Where it fails on a row's own data it is asked for ever fewer rows, and in the end `leave_out` sets aside the
    one after the key, and returns that row's own.
    """

    engine: Engine
    step: Callable[[Connection, Key, int], tuple[Key | None, Effect]]
    leave_out: Callable[[Connection, Key, Exception], Key]
    first: Key
    size: int

    def run(self) -> Iterator[Effect]:
        """The effect of each chunk, after its transaction."""
        after: Key | None = self.first
        size = self.size
        while after is not None:
            try:
                last, effect = retried(self.engine, partial(self._transact, self.step, after, size))
            except Exception as error:
                if not is_one_row_s(error):
                    raise
                if size == 1:
                    after = retried(self.engine, partial(self._transact, self.leave_out, after, error))
                size = max(size // 2, 1)
            else:
                yield effect
                after, size = last, min(2 * size, self.size)

    def _transact(self, step: Callable[..., Result], *values: object) -> Result:
        with transaction(self.engine) as connection:
            return step(connection, *values)


def in_words(error: Exception) -> str:
    """What is wrong with a row, in the database's words or ours, in one line."""
    words = re.split(r"\n(?:HINT|CONTEXT):", str(error.orig if isinstance(error, DBAPIError) else error))[0]
    return " ".join(words.split()) or type(error).__name__
