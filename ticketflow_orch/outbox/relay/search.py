"""Searching: in which order the due events of one destination are looked at, so that blocked ones hide no others.

First among the oldest; where those wait for earlier ones, from aggregate to aggregate too, going on where the last look
ended. `fetch` has the claims, `due` says what they cost.
"""

from __future__ import annotations

from sqlalchemy import Connection

from ticketflow_orch.outbox.relay import fetch
from ticketflow_orch.outbox.relay.due import Round
from ticketflow_orch.outbox.relay.fetch import Look, Wanted

_SHORT_WINDOW = 50
_TWICE_ROUND = 2


class Search:
    """The looks of one producer, whose claims are of `batch` events at most.

    `is_over`: whether there is nothing more to be found, until time passes or something ends. `walks`: whether a look
    at the oldest events that found them blocked goes on to the aggregates.
    """

    def __init__(self, batch: int) -> None:
        self.is_over = True
        self.walks = False
        self._batch = batch
        self._window = 2 * batch
        self._walk = Round()
        self._barren = 0

    def oldest(self, connection: Connection, wanted: Wanted, size: int, *, trying: bool) -> Look:
        """Claim up to `size` of the oldest events, or any one of them to see whether their destination takes it."""
        if trying:
            look = fetch.claim_any(connection, wanted, self._batch)
        else:
            look = fetch.claim_oldest(connection, wanted, size, min(self._window, 2 * size))
        if not look.blocked:
            self._window, self.is_over = 2 * self._batch, True
        else:
            # Another look at the same blocked events would bring as little; they are worth a short one only.
            self._window = _SHORT_WINDOW
            self.walks = not (look.claimed and self.walks)
        return look

    def further(self, connection: Connection, wanted: Wanted, size: int) -> Look:
        """Claim up to `size` heads of the aggregates that come next."""
        found = fetch.claim_scattered(connection, wanted, size, self._walk)
        if found.claimed:
            self._barren = 0
        elif self._walk.closed:
            self._barren += 1
        # Twice round without finding any is to have asked every aggregate, wherever the walk began.
        self.is_over = self._barren >= _TWICE_ROUND
        return found
