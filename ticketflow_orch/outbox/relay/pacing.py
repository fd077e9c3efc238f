"""Pacing: how much each destination is sent, going by how it does.

What is about the destination and not about an event (nobody answers, nothing is understood, too much at once) holds it
back as a whole, and costs no event its turn. Where it fails, nothing is sent for a while that doubles each time; then
one event tries, and as soon as one arrives all may go. Where it says that it takes less, it is sent less: the rate
falls by a fifth at once, and rises until it says so again. All relays share what is known, in a row of the database.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from sqlalchemy import Connection

from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.formatting.text import without_addresses
from ticketflow_orch.outbox.delivery import Verdict
from ticketflow_orch.outbox.delivery.configuration import Allowance
from ticketflow_orch.outbox.events import EventState
from ticketflow_orch.outbox.relay.conditions import (
    KNOWN,
    NEXT,
    OPEN,
    PROBED,
    SOON,
    WELL,
    Condition,
    condition_of,
    still,
)
from ticketflow_orch.outbox.relay.config import Patience
from ticketflow_orch.outbox.relay.ended import Ended, storable

# So many failures in a row, without one that arrived, are the destination's and not some events'.
FAILURES = 5
# In seconds: what a rate is measured by, at most.
_MEASURED = 1.0
_COUNTED = 10_000
# A rate that is not used says nothing when it is kept; several relays may share it.
_USED = 0.3


class _Sign(Enum):
    """What the end of an attempt says about its destination."""

    WELL = "well"
    ILL = "ill"
    TOO_MUCH = "too much"


def _sign(end: Ended) -> _Sign | None:
    if end.outcome is None or end.gone is not None:
        return None
    match end.outcome.verdict:
        case Verdict.DELIVERED | Verdict.REJECTED:
            return _Sign.WELL
        case Verdict.THROTTLED:
            return _Sign.TOO_MUCH
        case _ if not end.outcome.own_fault:
            return _Sign.ILL
        case _:
            # It answered, which is more than one does that is away.
            return _Sign.WELL if end.outcome.status is not None else None


class Pace:
    """What one relay sends to one destination, and what it learns of it. Safe to use from several threads."""

    def __init__(self, name: str, allowance: Allowance, patience: Patience) -> None:
        self.name = name
        self.condition = WELL
        self.probing = False
        self._allowance = allowance
        self._patience = patience
        self._window = float(allowance.concurrency)
        self._ill: set[int] = set()
        self._unreached = 0
        self._taken: deque[float] = deque(maxlen=_COUNTED)
        self._is_failing = False
        self._opens, self._held = False, False
        self._version = 0
        self._lock = threading.Lock()

    @property
    def window(self) -> int:
        """How many events may be in flight to it at once."""
        return 1 if self.probing or self.condition.is_open else int(self._window)

    @property
    def rate(self) -> float | None:
        """Events a second that it is sent at most; None: as many as it takes."""
        rates = [rate for rate in (self._allowance.rate, self.condition.rate) if rate is not None]
        return min(rates) if rates else None

    @property
    def holds_back(self) -> bool:
        """Whether what is claimed for it is not to be sent now after all."""
        return self._held or (not self.probing and (self.condition.is_open or self.condition.paused_for > 0))

    def probe(self, connection: Connection, lease: float) -> bool:
        """Whether this relay may try it with one event; no other may for `lease` seconds, or until that has ended."""
        self.probing = connection.exec_driver_sql(_PROBE, {"name": self.name, "lease": lease}).rowcount == 1
        return self.probing

    def forgo(self, connection: Connection) -> None:
        """Let others try it: there was nothing to try it with, or nothing came of it."""
        self.probing = False
        connection.exec_driver_sql(_FORGO, {"name": self.name})

    def reserve(self, connection: Connection, wanted: int) -> list[float]:
        """From when on, by the monotonic clock, each of at most `wanted` events may be begun; only those soon."""
        rate = self.rate
        if rate is None:
            return [0.0] * wanted
        turns = min(wanted, max(1, int(rate * SOON)))
        values = {"name": self.name, "needed": turns / rate, "soon": SOON}
        wait = connection.exec_driver_sql(_RESERVE, values).scalar_one_or_none()
        if wait is None:
            return []
        now = time.monotonic()
        return [now + wait + turn / rate for turn in range(turns)]

    @property
    def version(self) -> int:
        """Grows with what this relay writes, so that what was read before it can be known to be old."""
        return self._version

    def learn(self, condition: Condition, version: int) -> None:
        """Go by `condition`, as it was read when `version` was the last; not where this relay has written since."""
        with self._lock:
            if version == self._version:
                self.condition = condition

    def begin_anew(self) -> None:
        """Go by what the database has: what was seen and could not be written down holds nothing back."""
        with self._lock:
            self._ill.clear()
            self._unreached = 0
            self._opens = self._held = self.probing = False

    def see(self, end: Ended) -> None:
        """Count how an attempt ended, right when it does: what comes next may have to wait for what is made of it."""
        if end.state == EventState.DELIVERED and self._is_untroubled():
            self._taken.append(time.monotonic())
            return
        sign = _sign(end)
        if sign is None:
            return
        with self._lock:
            if sign is _Sign.WELL:
                self._ill.clear()
                self._unreached = 0
                self._window = min(self._window + 1, float(self._allowance.concurrency))
                self._taken.append(time.monotonic())
            elif sign is _Sign.TOO_MUCH:
                self._held = True
            elif end.outcome is not None and end.outcome.verdict is Verdict.UNREACHED:
                self._unreached += 1
            else:
                self._ill.add(end.claimed.id)
            if sign is _Sign.ILL and (self.probing or len(self._ill) + self._unreached >= FAILURES):
                self._opens = self._held = True

    def _is_untroubled(self) -> bool:
        """Whether one more that arrives changes nothing."""
        return not (self._ill or self._unreached or self._held) and self._window >= self._allowance.concurrency

    def note(self, connection: Connection, ends: Sequence[Ended]) -> Failing | None:
        """Write down what follows from attempts that were seen to end, where it matters; the destination, if it fails.

        `connection` commits each statement by itself.
        """
        usual = self.condition is WELL and not self.probing and not self._is_failing
        if usual and all(end.state == EventState.DELIVERED for end in ends):
            return None
        signs = [(end, sign) for end in ends if (sign := _sign(end)) is not None]
        ill = [end for end, sign in signs if sign is _Sign.ILL]
        throttled = [end for end, sign in signs if sign is _Sign.TOO_MUCH]
        arrived = any(sign is _Sign.WELL for _, sign in signs)
        with self._lock:
            opens = self._opens and bool(ill)
            observed = self._observed()
            if opens:
                self._ill.clear()
                self._unreached, self._opens = 0, False
            if throttled or opens:
                self._window = 1.0 if opens else max(1.0, self._window / 2)
        was_probing, failing = self.probing, None
        if opens:
            failing = self._write(connection, _OPENED, self._said(ill) | self._waits)
        elif throttled:
            values = self._said(throttled) | {"observed": observed, "probed": was_probing}
            failing = self._write(connection, _THROTTLED, values)
        elif ill and not arrived and not self._is_failing:
            failing = self._write(connection, _FAILED, self._said(ill))
        elif arrived and (was_probing or self._is_failing or self.condition.is_failing or self.condition.is_open):
            self._write(connection, _CLOSED, {"name": self.name})
        elif was_probing:
            self.forgo(connection)
        elif arrived and (known := self.condition.rate) is not None and observed > _USED * known:
            self._write(connection, _QUICKEN, {"name": self.name})
        self.probing = False
        if opens or throttled:
            self._held = self._opens
        return failing

    def _observed(self) -> float:
        """How many it took in a second, lately."""
        now = time.monotonic()
        while self._taken and self._taken[0] < now - _MEASURED:
            self._taken.popleft()
        return len(self._taken) / max(now - self._taken[0], 1.0) if self._taken else 0.0

    @property
    def _waits(self) -> dict[str, object]:
        return {
            "first": self._patience.first.total_seconds(),
            "longest": self._patience.longest.total_seconds(),
        }

    def _said(self, ends: Sequence[Ended]) -> dict[str, object]:
        wishes = [end.outcome.retry_after for end in ends if end.outcome and end.outcome.retry_after is not None]
        asked = min(max(wishes, default=0.0), self._patience.asked.total_seconds())
        return {"name": self.name, "error": _error(ends[-1]) if ends else None, "asked": asked}

    def _write(self, connection: Connection, statement: str, values: dict[str, object]) -> Failing | None:
        row = connection.exec_driver_sql(statement, values).one_or_none()
        if row is None:
            return None
        with self._lock:
            self._version += 1
            self.condition = condition_of(row)
            self._is_failing = self.condition.is_failing
        if row.failing_since is None:
            return None
        return Failing(self.name, row.failing_since, row.failing_for, row.last_error)


def end_failures(connection: Connection, names: Sequence[str]) -> None:
    """Let the destinations `names` fail no more: there is nothing by which they could show that they do not."""
    if names:
        connection.exec_driver_sql(_ARE_IDLE, {"names": list(names)})


@dataclass(frozen=True, slots=True)
class Failing:
    """A destination that fails: since when, for how many seconds, and what was said last."""

    destination: str
    since: datetime
    seconds: float
    error: str | None


def _error(end: Ended) -> str | None:
    return None if end.reason is None else storable(without_addresses(end.reason))


_FORGO = "UPDATE delivery_destination SET probe_until = NULL WHERE name = %(name)s::text"

_STILL_OPEN, _STILL_PROBED = still("open_until", OPEN), still("probe_until", PROBED)
_PROBE = sql(__file__, "probe", still_open=_STILL_OPEN, still_probed=_STILL_PROBED)
_RESERVE = sql(__file__, "reserve", still_next=still("known.next_at", NEXT))
_FAILED = sql(__file__, "failed", known=KNOWN)
_OPENED = sql(__file__, "opened", still_open=still("known.open_until", OPEN), known=KNOWN)
_CLOSED = sql(__file__, "closed", known=KNOWN)
_ARE_IDLE = sql(__file__, "are_idle")
_THROTTLED = sql(__file__, "throttled", known=KNOWN)
_QUICKEN = sql(__file__, "quicken", known=KNOWN)
