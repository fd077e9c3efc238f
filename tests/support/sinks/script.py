"""How a receiver is to behave: always, for one message, or at random."""

from __future__ import annotations

import random
import threading
from collections import Counter, deque
from collections.abc import Mapping


class Script:
    """Names of modes, one for each request; safe to change while requests come in."""

    def __init__(self) -> None:
        self._default = "ok"
        self._sequences: dict[str, deque[str]] = {}
        self._mix: tuple[list[str], list[float]] | None = None
        self._random = random.Random(0)
        self._lock = threading.Lock()
        self.played: Counter[str] = Counter()

    def always(self, mode: str) -> None:
        """Every request for which nothing else is said."""
        with self._lock:
            self._default, self._mix = mode, None

    def once(self, key: str, *modes: str) -> None:
        """The next requests about `key` (an event id, or a recipient), one mode each."""
        with self._lock:
            self._sequences.setdefault(key, deque()).extend(modes)

    def mix(self, weights: Mapping[str, float], seed: int) -> None:
        """At random; the rest up to a weight of 1 is ok."""
        with self._lock:
            modes = {"ok": 1 - sum(weights.values()), **weights}
            self._mix, self._random = (list(modes), list(modes.values())), random.Random(seed)

    def next(self, key: str) -> str:
        """The mode of a request about `key`."""
        with self._lock:
            sequence = self._sequences.get(key)
            mode = sequence.popleft() if sequence else self._default
            if not sequence and self._mix is not None:
                mode = self._random.choices(*self._mix)[0]
            self.played[mode] += 1
            return mode

    def special(self, key: str) -> str | None:
        """The mode said for the next request about `key`, if any."""
        with self._lock:
            sequence = self._sequences.get(key)
            mode = sequence.popleft() if sequence else None
            self.played[mode or "ok"] += mode is not None
            return mode
