"""State: what the producers of one drain share: who has work, what was lost, what came of events, and when it is over.

What they know of the database is in `knowledge`, what they were given in `config`; nothing in here talks to either.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from ticketflow_orch.outbox.relay.fetch import Lost

# In seconds: how long producers work at least between two retries of lost events.
_BETWEEN_RETRIES = 10.0


class DrainState:
    """Safe to use from several threads. `stop` and `until` (on the monotonic clock) end the drain.

    `limits`: the destinations, and how many seconds an attempt at each may take. `pause`: producers are to begin
    nothing because lost events wait to be tried, which must happen while as little as can be is in flight. `gone`: the
    destinations that said that they want nothing any more, until their stop is known; `slow`: those at which a lost
    event has been tried for a while. `tally`: what came of events. `ended`: grows whenever something has ended.
    """

    def __init__(self, limits: Mapping[str, float], until: float, stop: threading.Event) -> None:
        self.stop = stop
        self.pause = threading.Event()
        self.gone: set[str] = set()
        self.slow: set[str] = set()
        self.tally: Counter[str] = Counter()
        self.ended = 0
        self._limits = limits
        self._until = until
        self._busy = set(limits)
        self._resting: dict[str, int] = {}
        self._left: set[str] = set()
        self._lost: set[Lost] = set()
        self._retried_at = -_BETWEEN_RETRIES
        self._lock = threading.Lock()

    def end(self) -> None:
        """Let the drain be over by now, as if its time were."""
        self._until = -math.inf

    def over(self) -> bool:
        """Whether the drain is over."""
        return self.stop.is_set() or time.monotonic() >= self._until

    def over_for(self, destination: str) -> bool:
        """Whether nothing more may be begun for `destination`.

        Attempts that began in time may take long, and the next drain waits for them. As long as they would take anyway
        the other destinations are served.
        """
        if self.stop.is_set():
            return True
        now = time.monotonic()
        if now < self._until:
            return False
        with self._lock:
            waited_for = max((self._limits.get(other, 0.0) for other in self._busy - {destination}), default=0.0)
        return now + self._limits[destination] >= self._until + waited_for

    def works(self, destination: str) -> None:
        """Note that there is something to do for `destination`."""
        with self._lock:
            self._busy.add(destination)
            self._resting.pop(destination, None)

    def rests(self, destination: str, since: int) -> bool:
        """Note that nothing was found for `destination`, at `since`; whether nothing new can come of any other.

        `since` is what `ended` was then: what ends may let something go that is another destination's.
        """
        with self._lock:
            self._busy.discard(destination)
            self._resting[destination] = since
            unaware = any(self._resting.get(other) != self.ended for other in self._limits if other not in self._left)
            return not unaware and not self._busy and not self._lost

    def leaves(self, destination: str) -> None:
        """Note that the producer for `destination` has ended."""
        with self._lock:
            self._busy.discard(destination)
            self._left.add(destination)

    def note_lost(self, lost: Sequence[Lost]) -> None:
        """Remember events whose holders went away, but where one of them takes long already."""
        if lost:
            with self._lock:
                self._lost.update(one for one in lost if one.to not in self.slow)

    def has_lost_to_retry(self) -> bool:
        """Whether it is time to try lost events: there are some, and producers have worked for a while or have done."""
        with self._lock:
            since = time.monotonic() - self._retried_at
            return bool(self._lost) and (since >= _BETWEEN_RETRIES or not self._busy)

    def take_lost(self) -> list[Lost]:
        """The lost events that are to be tried now, the oldest first."""
        with self._lock:
            found = sorted(self._lost, key=lambda one: one.id)
            self._lost.clear()
        return found

    def resume(self) -> None:
        """End the pause: lost events were tried."""
        self._retried_at = time.monotonic()
        self.pause.clear()

    def count_ended(self, done: Counter[str]) -> None:
        """Add ends that were written down."""
        with self._lock:
            self.tally += done
            self.ended += 1

    def count_overtaken(self, number: int) -> None:
        """Add attempts whose event was no longer ours."""
        with self._lock:
            self.tally["overtaken"] += number
