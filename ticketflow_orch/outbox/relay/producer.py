"""Producers: one for each destination, so that a slow one holds up nobody else.

A producer's own thread claims events, has them prepared, gives them to its workers, who send outside any transaction,
and gives back what is not begun. One thread more has the completer write down how attempts ended, while the next events
are claimed: on two connections, so that the server can do both at once. How many are claimed follows from how many the
destination took in the last second, so that few wait behind a slow one and a crash leaves few.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from ticketflow_orch.db.errors import database_fault
from ticketflow_orch.outbox.relay.connections import autocommit
from ticketflow_orch.outbox.relay.ended import Result
from ticketflow_orch.outbox.relay.fetch import Claimed, Look, Wanted
from ticketflow_orch.outbox.relay.pipeline import Pipeline
from ticketflow_orch.outbox.relay.prepare import prepare
from ticketflow_orch.outbox.relay.search import Search
from ticketflow_orch.outbox.relay.workers import Workers

# In seconds: how long an end may wait to be written down, how long a producer that found nothing waits for the others,
# how long one that nobody wakes waits before it looks again.
_FLUSH = 0.2
_REST = 0.2
_POLL = 1.0
# In seconds: between two tries of a producer whose database is away.
_AWAY = (0.5, 5.0)
_LOG = logging.getLogger(__name__)


class Producer:
    """The deliveries to one destination. `quiet` is set while the drain pauses and nothing of it is in flight."""

    def __init__(self, pipeline: Pipeline, destination: str) -> None:
        self.quiet = threading.Event()
        self._config, self._state, self._knowledge = pipeline.config, pipeline.state, pipeline.knowledge
        self._completer = pipeline.completer
        self._destination = destination
        self._pace = pipeline.paces[destination]
        self._wake = threading.Event()
        self._workers = Workers(
            destination, pipeline.executor, self._state, self._pace, sent=self._one_was_sent, idle=self._wake.set
        )
        self._search = Search(self._config.batch)
        self._look_at = 0.0
        self._trying = False
        self._writing: Future[None] | None = None
        self._flushed_at = time.monotonic()
        self._most = self._pace.window
        self._size = min(self._config.batch, 2 * self._most)
        self._sized_at, self._finished = time.monotonic(), 0

    def wake(self) -> None:
        """Something new may be there."""
        self._look_at = 0.0
        self._wake.set()

    def run(self) -> None:
        """Deliver until nothing is due anywhere, or the drain is over; a database that is away is waited for.

        Raises:
            SQLAlchemyError: the database refuses, or is away when the time of the drain is over.
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
                if self._state.stop.wait(wait):
                    # It was asked to stop, and what it had claimed is written down or left to its lease.
                    return
                if self._state.over():
                    raise
                _LOG.warning("Deliveries to %s begin anew: %s", self._destination, fault.sentence)
            else:
                return

    def _deliver(self) -> None:
        self._state.works(self._destination)
        self._pace.begin_anew()
        with (
            autocommit(self._config.engine) as connection,
            autocommit(self._config.engine) as second,
            ThreadPoolExecutor(1, thread_name_prefix=f"relay {self._destination} writer") as writer,
            ThreadPoolExecutor(self._most, thread_name_prefix=f"relay {self._destination}") as pool,
        ):
            try:
                while not self._state.over_for(self._destination):
                    if self._state.pause.is_set():
                        self._stand_aside(connection, second, writer)
                        continue
                    # The workers, who have no connection, go by it before they send.
                    self._knowledge.refresh(connection)
                    self._resize()
                    if self._workers.queued <= self._size // 2 and time.monotonic() >= self._look_at:
                        since = self._state.ended
                        found = self._take(connection)
                        if not found and self._is_at_rest():
                            if not self._search.is_over:
                                continue
                            if self._has_rested(since):
                                break
                            continue
                    self._workers.hire(pool)
                    self._wake.wait(_FLUSH)
                    self._wake.clear()
                    self._collect(second, writer)
            finally:
                try:
                    self._leave(connection, pool)
                finally:
                    self._state.leaves(self._destination)
                    self.quiet.set()

    def _take(self, connection: Connection) -> bool:
        """Claim what may go and have it sent; whether there was any."""
        if self._trying and self._is_at_rest():
            # What was to try it came back unsent.
            self._stop_trying(connection)
        if not self._pace.condition.is_open:
            events = self._claim(connection, self._size - self._workers.queued)
            self._enqueue(connection, events)
            return bool(events)
        if not self._may_try(connection):
            self._search.is_over = True
            return False
        self._trying = True
        events = self._claim(connection, 1)
        if not self._enqueue(connection, events):
            self._stop_trying(connection)
        return bool(events)

    def _claim(self, connection: Connection, size: int) -> tuple[Claimed, ...]:
        look = self._look(connection, self._knowledge.wanted(connection, self._destination, anew=False), size)
        if not look.claimed and self._is_at_rest():
            look = self._look(connection, self._knowledge.wanted(connection, self._destination, anew=True), size)
        if look.claimed:
            self._state.works(self._destination)
        if len(look.claimed) < size and self._search.is_over:
            # There is no more, until time passes or something ends.
            self._look_at = time.monotonic() + _REST
        self._state.note_lost(look.lost)
        return look.claimed

    def _look(self, connection: Connection, wanted: Wanted, size: int) -> Look:
        if not wanted.types:
            self._search.is_over = True
            return Look()
        look = self._search.oldest(connection, wanted, size, trying=self._trying)
        if not (look.blocked and self._search.walks):
            return look
        with self._given_back_on_failure(look.claimed):
            found = self._search.further(connection, wanted, size - len(look.claimed))
        return Look(look.claimed + found.claimed, look.lost + found.lost)

    def _enqueue(self, connection: Connection, events: Sequence[Claimed]) -> int:
        """Have what of `events` is to be sent sent, each when its turn comes; how many there are."""
        with self._given_back_on_failure(events):
            ready = prepare(connection, self._config, self._completer, events)
            turns = self._pace.reserve(connection, len(ready)) if ready else []
        self._workers.enqueue(turns, ready)
        # The others' turns are far away.
        if len(turns) < len(ready):
            self._completer.complete(connection, ready[len(turns) :])
        return len(turns)

    @contextmanager
    def _given_back_on_failure(self, claimed: Sequence[Claimed]) -> Iterator[None]:
        """What was claimed and not sent goes back once there is a database, long before its lease is over."""
        try:
            yield
        except SQLAlchemyError:
            self._workers.results.extend(claimed)
            raise

    def _may_try(self, connection: Connection) -> bool:
        """Whether one event may be sent to a destination that fails, to see whether it still does."""
        if self._pace.condition.rests or not self._is_at_rest():
            return False
        return self._pace.probe(connection, self._config.leases[self._destination])

    def _stop_trying(self, connection: Connection) -> None:
        self._trying = False
        if self._pace.probing:
            self._pace.forgo(connection)

    def _resize(self) -> None:
        """Hold as many as the destination takes in a second, going by what it took since the last look."""
        elapsed = time.monotonic() - self._sized_at
        if self._finished >= self._size or elapsed >= 1:
            rate = self._finished / elapsed
            self._size = round(max(self._pace.window, min(rate, 4 * self._size, self._config.batch)))
            self._sized_at, self._finished = time.monotonic(), 0
        allowed = self._pace.rate
        if allowed is not None:
            self._size = max(1, min(self._size, math.ceil(allowed)))

    def _one_was_sent(self) -> None:
        # While ends are being written, the writer wakes the producer.
        results = self._workers.results
        if not self._workers.queued or (self._writing is None and len(results) >= self._size // 2):
            self._wake.set()

    def _collect(self, connection: Connection, writer: ThreadPoolExecutor) -> None:
        """Have written down what has ended: when much has, or all, or some a while ago."""
        self._workers.forget_finished()
        if self._writing is not None:
            if not self._writing.done():
                return
            self._writing.result()
            self._writing = None
        due = not self._workers.queued or len(self._workers.results) >= self._size // 2
        if self._workers.results and (due or time.monotonic() - self._flushed_at >= _FLUSH):
            results = self._workers.take_results()
            self._finished += len(results)
            self._flushed_at = time.monotonic()
            self._writing = writer.submit(self._write, connection, results)

    def _write(self, connection: Connection, results: Sequence[Result]) -> None:
        try:
            self._completer.complete(connection, results)
        finally:
            self.wake()

    def _is_at_rest(self) -> bool:
        """Whether nothing is in flight that could let another event go."""
        return self._workers.is_at_rest and not self._writing

    def _has_rested(self, since: int) -> bool:
        """Wait for something to come, and for the others; whether nothing is left to wait for."""
        done = self._state.rests(self._destination, since)
        if self._config.resident:
            self._wake.wait(_POLL * random.uniform(0.8, 1.2))  # noqa: S311 - so that relays do not look all at once
            self._wake.clear()
        elif done:
            return True
        else:
            self._state.stop.wait(_REST)
        self._look_at = 0.0
        return False

    def _stand_aside(self, connection: Connection, second: Connection, writer: ThreadPoolExecutor) -> None:
        """Give back what is not begun and begin nothing while the drain pauses."""
        self._completer.complete(connection, self._workers.take_unsent())
        while self._state.pause.is_set() and not self._state.stop.is_set():
            self._collect(second, writer)
            if self._is_at_rest():
                self.quiet.set()
            self._wake.wait(_FLUSH / 10)
            self._wake.clear()
        self.quiet.clear()
        self._look_at = 0.0

    def _leave(self, connection: Connection, pool: ThreadPoolExecutor) -> None:
        """Give back what is not begun, wait for what is, and write it down."""
        try:
            self._completer.complete(connection, self._workers.take_unsent())
        finally:
            pool.shutdown()
            self._workers.forget_finished()
            try:
                if self._writing is not None:
                    writing, self._writing = self._writing, None
                    writing.result()
            finally:
                self._completer.complete(connection, self._workers.take_results())
