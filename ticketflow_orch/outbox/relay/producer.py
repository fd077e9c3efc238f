"""Lanes: one for each destination, so that a slow one holds up nobody else.

A lane's own thread claims and gives back. Its workers send, outside any transaction, each taking the next event from
the lane's queue, when its turn has come where the destination has a rate. One thread writes down how attempts ended,
while the next events are claimed: on two connections, so that the server can do both at once. How many are claimed
follows from how many the destination took in the last second, so that few wait behind a slow one and a crash leaves
few.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from ticketflow_orch.db.errors import database_fault
from ticketflow_orch.outbox.relay import fetch
from ticketflow_orch.outbox.relay.due import Round
from ticketflow_orch.outbox.relay.fetch import Claimed, Look, Wanted
from ticketflow_orch.outbox.relay.state import Result, Shift

# In seconds: how long an end may wait to be written down, how long a lane that found nothing waits for the others, how
# long one that nobody calls waits before it looks again.
_FLUSH = 0.2
_REST = 0.2
_POLL = 1.0
_SHORT_WINDOW = 50
_TWICE_ROUND = 2
# In seconds: between two tries of a lane whose database is away.
_AWAY = (0.5, 5.0)
_LOG = logging.getLogger(__name__)


class Lane:
    """The deliveries to one destination. `quiet` is set while the shift pauses and nothing of the lane is in flight."""

    def __init__(self, shift: Shift, destination: str) -> None:
        self.quiet = threading.Event()
        self._shift = shift
        self._destination = destination
        self._pace = shift.paces[destination]
        self._queue: deque[tuple[float, Claimed]] = deque()
        self._results: deque[Result | None] = deque()
        self._wake = threading.Event()
        self._running: set[Future[None]] = set()
        self._working, self._counting = 0, threading.Lock()
        self._trying = False
        self._writing: Future[None] | None = None
        self._most = self._pace.window
        self._size = min(shift.batch, 2 * self._most)
        self._sized_at, self._finished = time.monotonic(), 0
        self._flushed_at = time.monotonic()
        self._walk = Round()
        self._barren, self._searched, self._walked = 0, True, False
        self._look_at = 0.0
        self._window = 2 * shift.batch

    def call(self) -> None:
        """Something new may be there."""
        self._look_at = 0.0
        self._wake.set()

    def run(self) -> None:
        """Deliver until nothing is due anywhere, or the shift ends; a database that is away is waited for.

        Raises:
            SQLAlchemyError: the database refuses, or is away when the time of the shift is over.
        """
        failures = 0
        while True:
            began = time.monotonic()
            try:
                self._deliver()
            except SQLAlchemyError as error:
                fault = database_fault(error)
                if fault is None or not fault.is_transient:
                    raise
                failures = failures + 1 if time.monotonic() - began < _AWAY[1] else 1
                wait = min(_AWAY[0] * 2 ** (failures - 1), _AWAY[1]) * random.uniform(0.5, 1)  # noqa: S311 - jitter
                if self._shift.stop.wait(wait):
                    # It was told to end, and what it had in hand is written down or left to its lease.
                    return
                if self._shift.over():
                    raise
                _LOG.warning("Deliveries to %s begin anew: %s", self._destination, fault.sentence)
            else:
                return

    def _deliver(self) -> None:
        self._shift.works(self._destination)
        self._pace.begin_anew()
        with (
            self._shift.autocommit() as connection,
            self._shift.autocommit() as second,
            ThreadPoolExecutor(1, thread_name_prefix=f"relay {self._destination} writer") as writer,
            ThreadPoolExecutor(self._most, thread_name_prefix=f"relay {self._destination}") as workers,
        ):
            try:
                while not self._shift.over_for(self._destination):
                    if self._shift.pause.is_set():
                        self._stand_aside(connection, second, writer)
                        continue
                    # The workers, who have no connection, go by it before they send.
                    self._shift.know(connection)
                    self._resize()
                    if len(self._queue) <= self._size // 2 and time.monotonic() >= self._look_at:
                        since = self._shift.ended
                        found = self._take(connection)
                        if not found and self._is_at_rest():
                            if not self._searched:
                                continue
                            if self._has_rested(since):
                                break
                            continue
                    self._hire(workers)
                    self._wake.wait(_FLUSH)
                    self._wake.clear()
                    self._collect(second, writer)
            finally:
                try:
                    self._leave(connection, workers)
                finally:
                    self._shift.leaves(self._destination)
                    self.quiet.set()

    def _is_at_rest(self) -> bool:
        """Whether nothing is under way that could let another event go."""
        return not (self._queue or self._running or self._results or self._writing)

    def _has_rested(self, since: int) -> bool:
        """Wait for something to come, and for the others; whether nothing is left to wait for."""
        done = self._shift.rests(self._destination, since)
        if self._shift.resident:
            self._wake.wait(_POLL * random.uniform(0.8, 1.2))  # noqa: S311 - so that relays do not look all at once
            self._wake.clear()
        elif done:
            return True
        else:
            self._shift.stop.wait(_REST)
        self._look_at = 0.0
        return False

    def _stand_aside(self, connection: Connection, second: Connection, writer: ThreadPoolExecutor) -> None:
        """Give back what is not begun and begin nothing while the shift pauses."""
        self._shift.end(connection, self._unsent())
        while self._shift.pause.is_set() and not self._shift.stop.is_set():
            self._collect(second, writer)
            if self._is_at_rest():
                self.quiet.set()
            self._wake.wait(_FLUSH / 10)
            self._wake.clear()
        self.quiet.clear()
        self._look_at = 0.0

    def _take(self, connection: Connection) -> bool:
        """Claim what may go and put it into the queue; whether there was any."""
        if self._trying and self._is_at_rest():
            # What was to try it came back unsent.
            self._stop_trying(connection)
        if not self._pace.condition.is_open:
            events = self._claim(connection, self._size - len(self._queue))
            self._enqueue(connection, events)
            return bool(events)
        if not self._may_try(connection):
            self._searched = True
            return False
        self._trying = True
        events = self._claim(connection, 1)
        if not self._enqueue(connection, events):
            self._stop_trying(connection)
        return bool(events)

    def _enqueue(self, connection: Connection, events: Sequence[Claimed]) -> int:
        """Put what of `events` is to be sent into the queue, each with the instant of its turn; how many there are."""
        with self._given_back_on_failure(events):
            ready = self._shift.begin(connection, events)
            turns = self._pace.reserve(connection, len(ready)) if ready else []
        self._queue.extend(zip(turns, ready, strict=False))
        # The others' turns are far away.
        if len(turns) < len(ready):
            self._shift.end(connection, ready[len(turns) :])
        return len(turns)

    @contextmanager
    def _given_back_on_failure(self, claimed: Sequence[Claimed]) -> Iterator[None]:
        """What was claimed and not sent goes back once there is a database, long before its lease is over."""
        try:
            yield
        except SQLAlchemyError:
            self._results.extend(claimed)
            raise

    def _may_try(self, connection: Connection) -> bool:
        """Whether one event may be sent to a destination that fails, to see whether it still does."""
        if self._pace.condition.rests or not self._is_at_rest():
            return False
        return self._pace.probe(connection, self._shift.leases[self._destination])

    def _stop_trying(self, connection: Connection) -> None:
        self._trying = False
        if self._pace.probing:
            self._pace.forgo(connection)

    def _claim(self, connection: Connection, size: int) -> tuple[Claimed, ...]:
        wanted = self._shift.wanted(connection, self._destination, anew=False)
        look = self._look(connection, wanted, size)
        if not look.claimed and self._is_at_rest():
            look = self._look(connection, self._shift.wanted(connection, self._destination, anew=True), size)
        if look.claimed:
            self._shift.works(self._destination)
        if len(look.claimed) < size and self._searched:
            # There is no more, until time passes or something ends.
            self._look_at = time.monotonic() + _REST
        self._shift.note_lost(look.lost)
        return look.claimed

    def _look(self, connection: Connection, wanted: Wanted, size: int) -> Look:
        if not wanted.types:
            self._searched = True
            return Look()
        if self._trying:
            look = fetch.claim_any(connection, wanted, self._shift.batch)
        else:
            look = fetch.claim_oldest(connection, wanted, size, min(self._window, 2 * size))
        if not look.blocked:
            self._window, self._searched = 2 * self._shift.batch, True
            return look
        # Another look at the same blocked events would bring as little; they are worth a short one only.
        self._window = _SHORT_WINDOW
        self._walked = not (look.claimed and self._walked)
        if not self._walked:
            return look
        with self._given_back_on_failure(look.claimed):
            found = fetch.claim_scattered(connection, wanted, size - len(look.claimed), self._walk)
        if found.claimed:
            self._barren = 0
        elif self._walk.closed:
            self._barren += 1
        # Twice round without finding any is to have asked every aggregate, wherever the walk began.
        self._searched = self._barren >= _TWICE_ROUND
        return Look(look.claimed + found.claimed, look.lost + found.lost)

    def _resize(self) -> None:
        """Hold as many as the destination takes in a second, going by what it took since the last look."""
        elapsed = time.monotonic() - self._sized_at
        if self._finished >= self._size or elapsed >= 1:
            rate = self._finished / elapsed
            self._size = round(max(self._pace.window, min(rate, 4 * self._size, self._shift.batch)))
            self._sized_at, self._finished = time.monotonic(), 0
        allowed = self._pace.rate
        if allowed is not None:
            self._size = max(1, min(self._size, math.ceil(allowed)))

    def _hire(self, workers: ThreadPoolExecutor) -> None:
        self._running = {one for one in self._running if not one.done()}
        for _ in range(min(len(self._queue), self._pace.window - len(self._running))):
            self._running.add(workers.submit(self._work))

    def _work(self) -> None:
        with self._counting:
            self._working += 1
        try:
            # Where the destination takes less at once by now, some stop.
            while self._working <= self._pace.window:
                turn, claimed = self._queue.popleft()
                self._results.append(self._send_in_turn(turn, claimed) if turn else self._shift.send(claimed))
                # While ends are being written, the writer wakes the lane.
                if not self._queue or (self._writing is None and len(self._results) >= self._size // 2):
                    self._wake.set()
        except IndexError:
            pass
        finally:
            with self._counting:
                self._working -= 1
            self._wake.set()

    def _send_in_turn(self, turn: float, claimed: Claimed) -> Result | None:
        while (wait := turn - time.monotonic()) > 0:
            over = self._shift.stop.wait(min(wait, _REST)) or self._shift.over_for(self._destination)
            if over or self._shift.pause.is_set() or self._shift.holds_back(self._destination):
                return claimed
        return self._shift.send(claimed)

    def _collect(self, connection: Connection, writer: ThreadPoolExecutor) -> None:
        """Have written down what has ended: when much has, or all, or some a while ago."""
        self._running = {one for one in self._running if not one.done()}
        if self._writing is not None:
            if not self._writing.done():
                return
            self._writing.result()
            self._writing = None
        due = not self._queue or len(self._results) >= self._size // 2
        if self._results and (due or time.monotonic() - self._flushed_at >= _FLUSH):
            results = [self._results.popleft() for _ in range(len(self._results))]
            self._finished += len(results)
            self._flushed_at = time.monotonic()
            self._writing = writer.submit(self._write, connection, results)

    def _write(self, connection: Connection, results: Sequence[Result | None]) -> None:
        try:
            self._shift.end(connection, results)
        finally:
            self._look_at = 0.0
            self._wake.set()

    def _unsent(self) -> list[Claimed]:
        """What is in the queue, which is empty then."""
        unsent: list[Claimed] = []
        with suppress(IndexError):
            while True:
                unsent.append(self._queue.popleft()[1])
        return unsent

    def _leave(self, connection: Connection, workers: ThreadPoolExecutor) -> None:
        """Give back what is not begun, wait for what is, and write it down."""
        try:
            self._shift.end(connection, self._unsent())
        finally:
            workers.shutdown()
            self._running.clear()
            try:
                if self._writing is not None:
                    writing, self._writing = self._writing, None
                    writing.result()
            finally:
                results, self._results = list(self._results), deque()
                self._shift.end(connection, results)
