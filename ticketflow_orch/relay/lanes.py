"""Lanes: one for each destination, so that a slow one holds up nobody else.

A lane's own thread claims and gives back. Its workers send, outside any transaction, each taking the next event from
the lane's queue. One thread writes down how attempts ended, while the next events are claimed: on two connections, so
that the server can do both at once. How many are claimed follows from how many the destination took in the last
second, so that few wait behind a slow one and a crash leaves few.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from sqlalchemy import Connection

from ticketflow_orch.relay import claiming
from ticketflow_orch.relay.claiming import Claimed, Look, Wanted
from ticketflow_orch.relay.looking import Round
from ticketflow_orch.relay.shift import Result, Shift

# In seconds: how long an end may wait to be written down, how long a lane that found nothing waits for the others.
_FLUSH = 0.2
_REST = 0.2
_SHORT_WINDOW = 50
_TWICE_ROUND = 2


class Lane:
    """The deliveries to one destination."""

    def __init__(self, shift: Shift, destination: str) -> None:
        self._shift = shift
        self._destination = destination
        self._queue: deque[Claimed] = deque()
        self._results: deque[Result | None] = deque()
        self._wake = threading.Event()
        self._running: set[Future[None]] = set()
        self._writing: Future[None] | None = None
        self._size = min(shift.batch, 2 * shift.in_flight)
        self._sized_at, self._finished = time.monotonic(), 0
        self._flushed_at = time.monotonic()
        self._walk = Round()
        self._barren, self._searched, self._walked = 0, True, False
        self._look_at = 0.0
        self._window = 2 * shift.batch

    def run(self) -> int:
        """Deliver until nothing is due anywhere, or the shift ends or pauses; how many were claimed."""
        claimed = 0
        with (
            self._shift.autocommit() as connection,
            self._shift.autocommit() as second,
            ThreadPoolExecutor(1, thread_name_prefix=f"relay {self._destination} writer") as writer,
            ThreadPoolExecutor(self._shift.in_flight, thread_name_prefix=f"relay {self._destination}") as workers,
        ):
            try:
                while not self._is_called_off():
                    # The workers, who have no connection, go by it before they send.
                    self._shift.know(connection)
                    self._resize()
                    if len(self._queue) <= self._size // 2 and time.monotonic() >= self._look_at:
                        events = self._claim(connection)
                        claimed += len(events)
                        self._queue.extend(self._shift.begin(connection, events))
                        self._hire(workers)
                        if not events and self._is_at_rest():
                            if not self._searched:
                                continue
                            if self._shift.rests(self._destination):
                                break
                            self._shift.stop.wait(_REST)
                            self._look_at = 0.0
                            continue
                    self._wake.wait(_FLUSH)
                    self._wake.clear()
                    self._collect(second, writer)
            finally:
                self._shift.rests(self._destination)
                self._leave(connection, workers)
        return claimed

    def _is_called_off(self) -> bool:
        return self._shift.over() or self._shift.pause.is_set() or self._destination in self._shift.gone

    def _is_at_rest(self) -> bool:
        """Whether nothing is under way that could let another event go."""
        return not (self._queue or self._running or self._results or self._writing)

    def _claim(self, connection: Connection) -> tuple[Claimed, ...]:
        wanted = self._shift.wanted(connection, self._destination, anew=False)
        look = self._look(connection, wanted)
        if not look.claimed and self._is_at_rest():
            look = self._look(connection, self._shift.wanted(connection, self._destination, anew=True))
        if look.claimed:
            self._shift.works(self._destination)
        if len(look.claimed) < self._size - len(self._queue) and self._searched:
            # There is no more, until time passes or something ends.
            self._look_at = time.monotonic() + _REST
        self._shift.note_lost(look.lost)
        return look.claimed

    def _look(self, connection: Connection, wanted: Wanted) -> Look:
        if not wanted.types:
            self._searched = True
            return Look()
        size = self._size - len(self._queue)
        look = claiming.claim_oldest(connection, wanted, size, min(self._window, 2 * size))
        if not look.blocked:
            self._window, self._searched = 2 * self._shift.batch, True
            return look
        # Another look at the same blocked events would bring as little; they are worth a short one only.
        self._window = _SHORT_WINDOW
        self._walked = not (look.claimed and self._walked)
        if not self._walked:
            return look
        found = claiming.claim_scattered(connection, wanted, size - len(look.claimed), self._walk)
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
            self._size = round(max(self._shift.in_flight, min(rate, 4 * self._size, self._shift.batch)))
            self._sized_at, self._finished = time.monotonic(), 0

    def _hire(self, workers: ThreadPoolExecutor) -> None:
        self._running = {one for one in self._running if not one.done()}
        for _ in range(min(len(self._queue), self._shift.in_flight - len(self._running))):
            self._running.add(workers.submit(self._work))

    def _work(self) -> None:
        while True:
            try:
                claimed = self._queue.popleft()
            except IndexError:
                self._wake.set()
                return
            self._results.append(self._shift.send(claimed))
            # While ends are being written, the writer wakes the lane.
            if not self._queue or (self._writing is None and len(self._results) >= self._size // 2):
                self._wake.set()

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

    def _leave(self, connection: Connection, workers: ThreadPoolExecutor) -> None:
        """Give back what is not begun, wait for what is, and write it down."""
        unsent: list[Claimed] = []
        with suppress(IndexError):
            while True:
                unsent.append(self._queue.popleft())
        try:
            self._shift.end(connection, unsent)
        finally:
            workers.shutdown()
            try:
                if self._writing is not None:
                    self._writing.result()
            finally:
                self._shift.end(connection, list(self._results))
