"""A shift: what the lanes of one drain share, and what all of them do with events."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from ticketflow_orch.outbox.delivery.configuration import Allowance, Delivery
from ticketflow_orch.outbox.delivery.handlers import EventKind
from ticketflow_orch.outbox.relay import due, fetch
from ticketflow_orch.outbox.relay.completer import Ended, Finisher, tell_of_destination
from ticketflow_orch.outbox.relay.due import Waiting
from ticketflow_orch.outbox.relay.executor import attempt, commit_of
from ticketflow_orch.outbox.relay.fetch import Claimed, Lost, Wanted
from ticketflow_orch.outbox.relay.pacing import Pace, Patience, end_failures
from ticketflow_orch.outbox.relay.prepare import prepare

# In seconds: how long what is known of types, stops and destinations holds, how long lanes work at least between two
# retries, for how long a database that is away is asked to take down what is known of attempts, and for how long by a
# shift that was told to end.
_KNOWN = 0.5
_BETWEEN_RETRIES = 10.0
_WRITING_DOWN = 600.0
_WRITING_DOWN_AT_THE_END = 60.0
_LONGEST_WAIT = 5.0

Result = Ended | Claimed


@dataclass
class Shift:
    """What the lanes of one drain share. `stop` and `until` (on the monotonic clock) end it.

    `limits`: how many seconds an attempt at each destination may take at most; `leases`: how long a claim lasts, which
    may wait to be begun as well. `agreed`: raises where the shift may not go on. `pause`: the lanes are to begin
    nothing because lost events wait to be tried, which must happen while as little as can be is in flight. `gone`: the
    destinations that said that they want nothing any more, until their stop is known; `slow`: those at which a lost
    event has been tried for a while. `resident`: what comes later is waited for. `ended`: grows whenever something has
    ended.
    """

    engine: Engine
    delivery: Delivery
    kinds: Mapping[str, EventKind]
    finisher: Finisher
    in_flight: int | None
    batch: int
    patience: float
    until: float
    stop: threading.Event
    agreed: Callable[[Connection], None] | None = None
    resident: bool = False
    patience_with: Patience = field(default_factory=Patience)
    pause: threading.Event = field(default_factory=threading.Event)
    lost: set[Lost] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    slow: set[str] = field(default_factory=set)
    tally: Counter[str] = field(default_factory=Counter)
    limits: dict[str, float] = field(init=False)
    leases: dict[str, float] = field(init=False)
    paces: dict[str, Pace] = field(init=False)
    busy: set[str] = field(default_factory=set)
    ended: int = 0
    _resting: dict[str, int] = field(default_factory=dict)
    _left: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _knowing: threading.Lock = field(default_factory=threading.Lock)
    _waiting: Waiting = field(default_factory=lambda: Waiting((), frozenset(), frozenset()))
    _known_at: float = -_KNOWN
    _retried_at: float = -_BETWEEN_RETRIES

    def __post_init__(self) -> None:
        """Lay down how long an attempt at each destination may take, and what it is sent at most."""
        routes = self.delivery.every_route()
        self.limits = {
            name: max((route.limit.total_seconds() for route in routes if route.destination == name), default=0.0)
            for name in self.delivery.destinations
        }
        self.leases = {name: self.patience + limit for name, limit in self.limits.items()}
        self.paces = {name: Pace(name, self._allowance(name), self.patience_with) for name in self.limits}

    def _allowance(self, destination: str) -> Allowance:
        allowance = self.delivery.allowance(destination)
        return allowance if self.in_flight is None else Allowance(allowance.rate, self.in_flight)

    def over(self) -> bool:
        """Whether the shift has come to its end."""
        return self.stop.is_set() or time.monotonic() >= self.until

    def over_for(self, lane: str) -> bool:
        """Whether nothing more may be begun in `lane`.

        Attempts that began in time may take long, and the next shift waits for them. As long as they would take anyway
        the other destinations are served.
        """
        if self.stop.is_set():
            return True
        now = time.monotonic()
        if now < self.until:
            return False
        with self._lock:
            waited_for = max((self.limits.get(other, 0.0) for other in self.busy - {lane}), default=0.0)
        return now + self.limits[lane] >= self.until + waited_for

    @contextmanager
    def autocommit(self) -> Iterator[Connection]:
        """A connection on which each statement is a transaction by itself, and is planned once."""
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(due.PLANNED_ONCE)
            yield connection
            connection.exec_driver_sql(due.PLANNED_AS_EVER)

    def know(self, connection: Connection, *, anew: bool = False) -> Waiting:
        """What waits, what is stopped and how destinations do, as known for half a second at most, or `anew`.

        A destination that fails and that nothing waits for fails no more.

        Raises:
            InvalidInput: the shift may not go on.
        """
        with self._knowing:
            if anew or time.monotonic() - self._known_at >= _KNOWN:
                if self.agreed is not None:
                    self.agreed(connection)
                versions = {name: pace.version for name, pace in self.paces.items()}
                self._waiting, self._known_at = due.waiting(connection), time.monotonic()
                end_failures(connection, self._waiting.idle(self.delivery))
                for name, pace in self.paces.items():
                    pace.learn(self._waiting.condition(name), versions[name])
            return self._waiting

    def wanted(self, connection: Connection, destination: str, *, anew: bool) -> Wanted:
        """What may be claimed for `destination`, going by what is known, or is found out `anew`."""
        waiting = self.know(connection, anew=anew)
        pace = self.paces[destination]
        rests = pace.condition.rests and not pace.probing
        types = () if rests else waiting.claimable(self.delivery, destination, trying=pace.probing)
        return Wanted(
            owner=self.finisher.owner,
            lease=self.leases[destination],
            destination=destination,
            types=types,
            skipping=waiting.skipping(self.delivery),
            committing=tuple(
                kind for kind in waiting.types if self.delivery.route_to(kind, destination).remembers is not None
            ),
        )

    def note_lost(self, lost: Sequence[Lost]) -> None:
        """Remember events whose holders went away, but where one of them takes long already."""
        if lost:
            with self._lock:
                self.lost.update(one for one in lost if one.to not in self.slow)

    def has_lost_to_retry(self) -> bool:
        """Whether it is time to try lost events: there are some, and the lanes have worked for a while or have done."""
        with self._lock:
            since = time.monotonic() - self._retried_at
            return bool(self.lost) and (since >= _BETWEEN_RETRIES or not self.busy)

    def take_lost(self) -> list[Lost]:
        """The lost events that are to be tried now, the oldest first."""
        with self._lock:
            found = sorted(self.lost, key=lambda one: one.id)
            self.lost.clear()
        return found

    def retried(self) -> None:
        """The lanes may work again."""
        self._retried_at = time.monotonic()
        self.pause.clear()

    def rests(self, lane: str, since: int) -> bool:
        """Note that `lane` found nothing when it looked, at `since`; whether nothing new can come of any.

        `since` is what `ended` was then: what ends may let something go that is another lane's.
        """
        with self._lock:
            self.busy.discard(lane)
            self._resting[lane] = since
            unaware = any(self._resting.get(other) != self.ended for other in self.paces if other not in self._left)
            return not unaware and not self.busy and not self.lost

    def works(self, lane: str) -> None:
        """Note that `lane` has something to do."""
        with self._lock:
            self.busy.add(lane)
            self._resting.pop(lane, None)

    def leaves(self, lane: str) -> None:
        """Note that `lane` has come to its end."""
        with self._lock:
            self.busy.discard(lane)
            self._left.add(lane)

    def count(self, what: str, number: int = 1) -> None:
        """Add to the tally."""
        with self._lock:
            self.tally[what] += number

    def begin(self, connection: Connection, claimed: Sequence[Claimed]) -> tuple[Claimed, ...]:
        """What of `claimed` is to be sent, after the business was asked; the rest is finished here."""
        ready = prepare(self.engine, self.delivery, self.kinds, claimed)
        self.count("overtaken", ready.overtaken)
        self.end(connection, ready.ended)
        return ready.events

    def send(self, claimed: Claimed) -> Result | None:
        """Send `claimed`; gives it back as it is when it waited for too long, or is not to be sent now after all."""
        event_type, destination = claimed.message.event_type, claimed.to
        stopped = self.holds_back(destination) or self._waiting.is_stopped(event_type, destination)
        if stopped or time.monotonic() - claimed.at >= self.patience:
            return claimed
        route = self.delivery.route_to(event_type, destination)
        commit = commit_of(self.engine, claimed, route, self.leases[destination])
        ended = attempt(claimed, route, self.delivery.transport(destination), commit)
        if isinstance(ended, Ended):
            self.paces[destination].see(ended)
            if ended.gone is not None:
                self.gone.add(ended.gone)
        return ended

    def holds_back(self, destination: str) -> bool:
        """Whether what is claimed for it is not to be sent now after all."""
        return destination in self.gone or self.paces[destination].holds_back

    def end(self, connection: Connection, results: Sequence[Result | None]) -> None:
        """Write down what came of attempts, and count it.

        What is known must not go with one connection, nor with a database that is away for a moment: it is written down
        when another connection can be had. What was written before is fenced.

        Raises:
            SQLAlchemyError: no connection could be had for long.
        """
        try:
            self._end(connection, results)
        except SQLAlchemyError:
            self._end_later(results)
            raise

    def _end_later(self, results: Sequence[Result | None]) -> None:
        began, wait = time.monotonic(), 0.1
        while True:
            try:
                with self.autocommit() as fresh:
                    self._end(fresh, results)
            except SQLAlchemyError:
                patience = _WRITING_DOWN_AT_THE_END if self.stop.is_set() else _WRITING_DOWN
                if time.monotonic() + wait >= began + patience:
                    raise
                time.sleep(wait)
                wait = min(2 * wait, _LONGEST_WAIT)
            else:
                return

    def _end(self, connection: Connection, results: Sequence[Result | None]) -> None:
        ended = [one for one in results if isinstance(one, Ended)]
        if ended:
            done = self.finisher.finish(connection, ended)
            with self._lock:
                self.tally += done
                self.ended += 1
            if gone := {end.gone for end in ended if end.gone is not None}:
                # From now on its stop keeps it from being sent anything, until somebody ends that.
                self.know(connection, anew=True)
                self.gone -= gone
        unsent = [one for one in results if isinstance(one, Claimed)]
        if unsent:
            fetch.give_back(connection, unsent)
        self.count("overtaken", sum(one is None for one in results))
        if ended:
            self._learn(connection, ended)

    def _learn(self, connection: Connection, ended: Sequence[Ended]) -> None:
        """Let the destination's pace follow from `ended`, and tell operators of one that has failed for long."""
        # A lane's are all of one destination.
        failing = self.paces[ended[0].claimed.to].note(connection, ended)
        if failing is not None and failing.seconds >= self.patience_with.told_after.total_seconds():
            tell_of_destination(self.engine, failing, self.finisher.now())
