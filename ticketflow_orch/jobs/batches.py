"""Work on many rows in chunks: locked in key order, a transaction each, a bad row set aside instead of stopping all.

What is remembered of a bad row, and who is alerted, is decided by the caller's `Memory`, such as that of `bad_rows`.

A chunk takes two steps in one transaction, because the second must look with fresh eyes: what committed while the first
waited for a row's lock is not in the first's snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from ticketflow_orch.db.engine import transaction
from ticketflow_orch.db.errors import in_words, is_locked, is_one_row_s
from ticketflow_orch.db.retrying import retried
from ticketflow_orch.formatting.counts import counted

# As many bad rows are found one by one and named at most, where all are counted.
NAMED = 100
# For how long a statement waits for what somebody's trigger wants to lock, in seconds: first for a whole chunk, then
# for ever smaller parts of it.
_PATIENCE, _LESS_PATIENCE = 5.0, 0.5
# So many rows are waited for like that in a run.
_WAITED_FOR = 10

Effect = TypeVar("Effect")
Key = TypeVar("Key")
Result = TypeVar("Result")


class ManyBadRowsError(RuntimeError):
    """So many rows fail that they are not looked for one by one; all others are done."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rows a step is to lock: at most `size` that are due, without `left_out`, or those of `only` that still are.

    `after`: those behind this place in their order. `waiting`: wait for rows that others have locked, instead of
    skipping them. `looking`: lock none.
    """

    size: int
    left_out: Sequence[int | str] = ()
    only: Sequence[int] | None = None
    after: tuple[Any, ...] | None = None
    waiting: bool = False
    looking: bool = False

    def locking(self, table: str) -> str:
        """The clause that locks the rows of `table`."""
        if self.looking:
            return ""
        return f"FOR UPDATE OF {table}" + ("" if self.waiting else " SKIP LOCKED")


@dataclass(frozen=True, slots=True)
class Taken:
    """The ids of rows that were found, in their order, and the place of the last of them in it."""

    ids: Sequence[int]
    last: tuple[Any, ...] | None


def as_array(ids: Sequence[int]) -> str:
    """`ids` as Postgres writes an array: one string is bound and read in a fraction of the time of so many numbers."""
    return "{" + ",".join(map(str, ids)) + "}"


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row, by its id or name, whose own data keeps it from being done, and why, in the database's words or ours.

    `name`: what it is called outside, where its id is a number; after a restore that may be another row's.
    """

    id: int | str
    error: str
    name: str | None = None

    @property
    def called(self) -> int | str:
        """What people know it by."""
        return self.id if self.name is None else self.name


class Memory(Protocol):
    """What is remembered of the rows that a work leaves out, from one run to the next."""

    def known(self, connection: Connection) -> list[int]:
        """The ids of the rows that were left out before; those that were tried least lately first."""

    def note(self, connection: Connection, row: BadRow, *, at_once: bool) -> None:
        """Remember `row`, which was left out now. `at_once`: somebody is to know of it the first time already."""

    def end(self, connection: Connection, rows: Sequence[int]) -> None:
        """Forget `rows`: they are done, or not due any more."""


def named(rows: Sequence[BadRow]) -> str:
    """What is wrong with each of `rows`, in sentences; of those beyond the first hundred how many they are."""
    more = f" And {len(rows) - NAMED:,} more." if len(rows) > NAMED else ""
    return " ".join(row.error for row in rows[:NAMED]) + more


@dataclass
class _Attempt(Generic[Effect]):
    """A chunk being done: which rows it looks for, which it found, and what it did to them, if it came to that."""

    wanted: Wanted
    taken: Taken = Taken((), None)
    effects: list[Effect] = field(default_factory=list)

    def begin(self, taken: Taken) -> None:
        """Hold on to the rows that were found first: another attempt asks what has become of them."""
        self.effects = []
        if not self.taken.ids:
            self.taken, self.wanted = taken, replace(self.wanted, only=taken.ids or self.wanted.only)

    def end(self, effects: list[Effect]) -> None:
        """Nothing but the COMMIT is left; another attempt waits for its end, where the server is still busy with it."""
        self.effects, self.wanted = effects, replace(self.wanted, waiting=True)


@dataclass
class ChunkedWork(Generic[Effect]):
    """All that is due, `size` rows a transaction: `take` locks rows behind a place in their order, `apply` does them.

    A chunk is tried again while the database is away. Whether one whose COMMIT had no answer was committed shows in
    its rows: those that are done are not due any more.

    A chunk that fails is halved down to the rows that make it fail: they are `bad`. With a `memory` they are
    remembered, left out of the chunks of later runs, and tried after those; so one run finds up to NAMED of them, and
    the next one goes on. `name`: the query for what the row with an `id` is called outside. `alone`: what else can be
    done with a row that `apply` fails on.
    """

    engine: Engine
    take: Callable[[Connection, Wanted], Taken]
    apply: Callable[[Connection, Sequence[int]], Effect]
    size: int
    bad: list[BadRow] = field(default_factory=list)
    name: str | None = None
    memory: Memory | None = None
    alone: Callable[[Connection, int], Effect] | None = None
    _known: list[int] | None = None
    _most: int = NAMED
    _waited_for: int = 0
    # Rows of chunks that failed and were not halved, and what the first of them failed on.
    _unfound: int = 0
    _why: str = ""

    def run(self) -> Iterator[Effect]:
        """The effect of each chunk, until nothing is due that nobody has locked; then of what was left out before."""
        known = self._remembered()
        yield from self._all(Wanted(self.size, known))
        yield from self._again(known[:NAMED])

    def sweep(self, patience: float) -> Iterator[Effect]:
        """As `run`, but waiting up to `patience` seconds for a locked row; ends early when one stays locked."""
        try:
            wanted = Wanted(self.size, self._remembered(), waiting=True)
            yield from self._all(wanted, patience)
        except DBAPIError as error:
            if not is_held(error):
                raise

    def must_be_few(self) -> None:
        """Raise ManyBadRowsError where rows were passed over that nobody has looked at one by one: the others are done.

        To be asked when all else is.
        """
        if self._unfound:
            raise ManyBadRowsError(
                f"More than {counted(NAMED, 'row')} fail, and {self._unfound:,} beside them were left for the next "
                f"run, of which the first says: {self._why}."
            )

    def _remembered(self) -> list[int]:
        if self._known is None:
            self._known = []
            if self.memory is not None:
                self._known = self._read(self.memory.known)
        found = {row.id for row in self.bad}
        return [*self._known, *(row for row in found if isinstance(row, int) and row not in self._known)]

    def _all(self, wanted: Wanted, patience: float | None = None) -> Iterator[Effect]:
        while True:
            taken, effects = self._chunk(wanted, _PATIENCE, patience)
            yield from effects
            if not taken.ids:
                return
            wanted = replace(wanted, after=taken.last)

    def _again(self, known: Sequence[int]) -> Iterator[Effect]:
        """Try rows that were left out before; the breaks of those that are done, or not due any more, are over."""
        memory = self.memory
        if not known or memory is None:
            return
        looked = self._read(lambda connection: self.take(connection, Wanted(len(known), only=known, looking=True)))
        due = set(looked.ids)
        self._most += len(self.bad)
        taken, effects = self._chunk(Wanted(len(known), only=known), _LESS_PATIENCE)
        yield from effects
        failed = {row.id for row in self.bad}
        over = [row for row in known if row not in failed and (row in taken.ids or row not in due)]
        self._write(lambda connection: memory.end(connection, over))

    def _chunk(
        self, wanted: Wanted, patience: float, patience_to_take: float | None = None
    ) -> tuple[Taken, list[Effect]]:
        attempt = _Attempt[Effect](wanted)
        try:
            # A lock that is not to be had is for the sweep, or for the whole.
            return retried(self.engine, lambda: self._transact(attempt, patience, patience_to_take), waiting=False)
        except Exception as error:
            if not attempt.taken.ids or not (is_one_row_s(error) or is_held(error)):
                raise
            return attempt.taken, list(self._narrowed(attempt.taken.ids, error))

    def _transact(
        self, attempt: _Attempt[Effect], patience: float, patience_to_take: float | None
    ) -> tuple[Taken, list[Effect]]:
        with transaction(self.engine) as connection:
            if patience_to_take is not None:
                _be_patient(connection, patience_to_take)
            taken = self.take(connection, attempt.wanted)
            if len(taken.ids) < len(attempt.taken.ids) and attempt.effects:
                # Committed, though nobody answered.
                return attempt.taken, attempt.effects
            attempt.begin(taken)
            if taken.ids:
                _be_patient(connection, patience)
                attempt.end([self.apply(connection, taken.ids)])
        return attempt.taken, attempt.effects

    def _narrowed(self, ids: Sequence[int], error: Exception) -> Iterator[Effect]:
        if len(self.bad) >= self._most or self._waited_for >= _WAITED_FOR:
            self._unfound += len(ids)
            self._why = self._why or in_words(error)
            return
        if len(ids) == 1:
            yield from self._alone(ids[0], error)
            return
        middle = len(ids) // 2
        for half in (ids[:middle], ids[middle:]):
            yield from self._chunk(Wanted(len(half), only=half), _LESS_PATIENCE)[1]

    def _alone(self, row: int, error: Exception) -> Iterator[Effect]:
        if self.alone is not None:
            try:
                effect = retried(self.engine, partial(self._do_alone, self.alone, row), waiting=False)
            except Exception as another:
                if not (is_one_row_s(another) or is_held(another)):
                    raise
            else:
                yield effect
                return
        self._waited_for += is_held(error)
        self._set_aside(row, error)

    def _do_alone(self, alone: Callable[[Connection, int], Effect], row: int) -> Effect:
        with transaction(self.engine) as connection:
            _be_patient(connection, _LESS_PATIENCE)
            return alone(connection, row)

    def _set_aside(self, row: int, error: Exception) -> None:
        bad, memory = BadRow(row, in_words(error), self._name_of(row)), self.memory
        self.bad.append(bad)
        if memory is not None:
            # A lock that another session holds for a moment is no reason to alert anybody at once.
            self._write(lambda connection: memory.note(connection, bad, at_once=not is_held(error)))

    def _name_of(self, row: int) -> str | None:
        query = self.name
        if query is None:
            return None
        return self._read(lambda connection: connection.exec_driver_sql(query, {"id": row}).scalar_one_or_none())

    def _read(self, question: Callable[[Connection], Result]) -> Result:
        def read() -> Result:
            with self.engine.connect() as connection:
                return question(connection)

        return retried(self.engine, read)

    def _write(self, step: Callable[[Connection], None]) -> None:
        def write() -> None:
            with transaction(self.engine) as connection:
                step(connection)

        retried(self.engine, write)


def is_held(error: Exception) -> bool:
    """Whether somebody else holds what `error` was raised for."""
    return is_locked(error)


def _be_patient(connection: Connection, seconds: float) -> None:
    connection.exec_driver_sql(_SET_PATIENCE, {"patience": f"{round(seconds * 1000)}ms"})


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


_SET_PATIENCE = "SELECT set_config('lock_timeout', %(patience)s, true)"
