"""Workers: the threads that send to one destination, each taking the next event when its turn has come."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from ticketflow_orch.outbox.relay.ended import Result
from ticketflow_orch.outbox.relay.executor import Executor
from ticketflow_orch.outbox.relay.fetch import Claimed
from ticketflow_orch.outbox.relay.pacing import Pace
from ticketflow_orch.outbox.relay.state import DrainState

# In seconds: how long a wait for a turn is at most, before it is asked whether it is still to be sent.
_REST = 0.2


class Workers:
    """Sends what is enqueued by way of `executor`, and keeps what came of it in `results`.

    `sent` is called after each event, `idle` when a thread has nothing more to do; both in that thread. All
    else is for the producer's own thread to call.
    """

    def __init__(
        self,
        destination: str,
        executor: Executor,
        state: DrainState,
        pace: Pace,
        *,
        sent: Callable[[], None],
        idle: Callable[[], None],
    ) -> None:
        self.results: deque[Result] = deque()
        self._destination = destination
        self._executor = executor
        self._state = state
        self._pace = pace
        self._sent = sent
        self._idle = idle
        self._queue: deque[tuple[float, Claimed]] = deque()
        self._running: set[Future[None]] = set()
        self._working, self._counting = 0, threading.Lock()

    @property
    def queued(self) -> int:
        """How many events wait to be sent."""
        return len(self._queue)

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing waits, is being sent, or has ended and was not taken."""
        return not (self._queue or self._running or self.results)

    def enqueue(self, turns: Iterable[float], events: Iterable[Claimed]) -> None:
        """Have `events` sent, each at the instant of its turn; those beyond the turns are not."""
        self._queue.extend(zip(turns, events, strict=False))

    def hire(self, pool: ThreadPoolExecutor) -> None:
        """Have as many threads at it as there are events, and as the destination takes at once."""
        self.forget_finished()
        for _ in range(min(len(self._queue), self._pace.window - len(self._running))):
            self._running.add(pool.submit(self._work))

    def forget_finished(self) -> None:
        """Count threads that have done no more."""
        self._running = {one for one in self._running if not one.done()}

    def take_unsent(self) -> list[Claimed]:
        """What waits to be sent, which nothing does then."""
        unsent: list[Claimed] = []
        with suppress(IndexError):
            while True:
                unsent.append(self._queue.popleft()[1])
        return unsent

    def take_results(self) -> list[Result]:
        """What came of events until now."""
        return [self.results.popleft() for _ in range(len(self.results))]

    def _work(self) -> None:
        with self._counting:
            self._working += 1
        try:
            # Where the destination takes less at once by now, some stop.
            while self._working <= self._pace.window:
                turn, claimed = self._queue.popleft()
                self.results.append(self._send_in_turn(turn, claimed) if turn else self._executor.send(claimed))
                self._sent()
        except IndexError:
            pass
        finally:
            with self._counting:
                self._working -= 1
            self._idle()

    def _send_in_turn(self, turn: float, claimed: Claimed) -> Result:
        while (wait := turn - time.monotonic()) > 0:
            over = self._state.stop.wait(min(wait, _REST)) or self._state.over_for(self._destination)
            if over or self._state.pause.is_set() or self._executor.holds_back(self._destination):
                return claimed
        return self._executor.send(claimed)
