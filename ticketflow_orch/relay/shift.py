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

from ticketflow_orch.delivery.configuration import Delivery
from ticketflow_orch.delivery.preparing import EventKind
from ticketflow_orch.relay import claiming, looking
from ticketflow_orch.relay.claiming import Claimed, Lost, Wanted
from ticketflow_orch.relay.finishing import Ended, Finisher
from ticketflow_orch.relay.looking import Waiting
from ticketflow_orch.relay.preparing import prepare
from ticketflow_orch.relay.sending import attempt, commit_of

# In seconds: how long what is known of types and stops holds, how long lanes work at least between two retries.
_KNOWN = 0.5
_BETWEEN_RETRIES = 10.0

Result = Ended | Claimed


@dataclass
class Shift:
    """What the lanes of one drain share. `stop` and `until` (on the monotonic clock) end it.

    `leases`: for how many seconds a claim for each destination lasts: what it may wait to be begun, and what an attempt
    may take. `agreed`: raises where the shift may not go on. `pause`: the lanes are to end because lost events wait to
    be tried, which must happen while nothing else is in flight. `gone`: the destinations that said that they want
    nothing any more.
    """

    engine: Engine
    delivery: Delivery
    kinds: Mapping[str, EventKind]
    finisher: Finisher
    in_flight: int
    batch: int
    patience: float
    until: float
    stop: threading.Event
    agreed: Callable[[Connection], None] | None = None
    pause: threading.Event = field(default_factory=threading.Event)
    lost: set[Lost] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    tally: Counter[str] = field(default_factory=Counter)
    leases: dict[str, float] = field(init=False)
    busy: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _waiting: Waiting = field(default_factory=lambda: Waiting((), frozenset(), frozenset()))
    _known_at: float = -_KNOWN
    _retried_at: float = -_BETWEEN_RETRIES

    def __post_init__(self) -> None:
        """Lay down how long a claim for each destination lasts."""
        routes = (self.delivery.default, *self.delivery.routes.values())
        self.leases = {
            name: self.patience
            + max((route.limit.total_seconds() for route in routes if route.destination == name), default=0.0)
            for name in self.delivery.destinations
        }

    def over(self) -> bool:
        """Whether nothing more may be begun in this shift."""
        return self.stop.is_set() or time.monotonic() >= self.until

    @contextmanager
    def autocommit(self) -> Iterator[Connection]:
        """A connection on which each statement is a transaction by itself, and is planned once."""
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(looking.PLANNED_ONCE)
            yield connection
            connection.exec_driver_sql(looking.PLANNED_AS_EVER)

    def know(self, connection: Connection, *, anew: bool = False) -> Waiting:
        """What waits and what is stopped, as known for half a second at most, or `anew`.

        Raises:
            InputError: the shift may not go on.
        """
        with self._lock:
            if anew or time.monotonic() - self._known_at >= _KNOWN:
                if self.agreed is not None:
                    self.agreed(connection)
                self._waiting, self._known_at = looking.waiting(connection), time.monotonic()
            return self._waiting

    def wanted(self, connection: Connection, destination: str, *, anew: bool) -> Wanted:
        """What may be claimed for `destination`, going by what is known, or is found out `anew`."""
        waiting = self.know(connection, anew=anew)
        return Wanted(
            owner=self.finisher.owner,
            lease=self.leases[destination],
            destination=destination,
            types=waiting.claimable(self.delivery, destination),
            skipping=waiting.skipping(self.delivery),
            committing=tuple(kind for kind in waiting.types if self.delivery.route(kind).remembers is not None),
        )

    def note_lost(self, lost: Sequence[Lost]) -> None:
        """Remember events whose holders went away, and call the lanes off if it is time to try them."""
        with self._lock:
            self.lost.update(lost)
            if lost and time.monotonic() - self._retried_at >= _BETWEEN_RETRIES:
                self.pause.set()

    def retried(self) -> None:
        """The lanes may work again."""
        self.pause.clear()
        self.lost.clear()
        self._retried_at = time.monotonic()

    def rests(self, lane: str) -> bool:
        """Note that `lane` found nothing; whether all others did too, so that nothing new can come of them."""
        with self._lock:
            self.busy.discard(lane)
            return not self.busy

    def works(self, lane: str) -> None:
        """Note that `lane` has something to do."""
        with self._lock:
            self.busy.add(lane)

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
        """Send `claimed`; gives it back as it is when it waited for too long, or is not to be sent any more."""
        event_type = claimed.message.event_type
        route = self.delivery.route(event_type)
        stopped = route.destination in self.gone or self._waiting.is_stopped(event_type, route.destination)
        if stopped or time.monotonic() - claimed.at >= self.patience:
            return claimed
        commit = commit_of(self.engine, claimed, route, self.leases[route.destination])
        ended = attempt(claimed, route, self.delivery.transport(route.destination), commit)
        if ended is not None and ended.gone is not None:
            self.gone.add(ended.gone)
        return ended

    def end(self, connection: Connection, results: Sequence[Result | None]) -> None:
        """Write down what came of attempts, and count it.

        Raises:
            SQLAlchemyError: `connection` is broken; what came of them is written down if another one could be had.
        """
        try:
            self._end(connection, results)
        except SQLAlchemyError:
            # What is known must not go with one connection. What was written before is fenced.
            with self.autocommit() as fresh:
                self._end(fresh, results)
            raise

    def _end(self, connection: Connection, results: Sequence[Result | None]) -> None:
        ended = [one for one in results if isinstance(one, Ended)]
        if ended:
            done = self.finisher.finish(connection, ended)
            with self._lock:
                self.tally += done
        unsent = [one for one in results if isinstance(one, Claimed)]
        if unsent:
            claiming.give_back(connection, unsent)
        self.count("overtaken", sum(one is None for one in results))
