"""Knowledge: what one drain knows of the database, half a second old at most, and what it claims by that."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from sqlalchemy import Connection

from ticketflow_orch.outbox.relay import due
from ticketflow_orch.outbox.relay.config import RelayConfig
from ticketflow_orch.outbox.relay.due import Waiting
from ticketflow_orch.outbox.relay.fetch import Wanted
from ticketflow_orch.outbox.relay.pacing import Pace, end_failures

# In seconds: how long what is known of types, stops and destinations holds.
_HOLDS = 0.5


class Knowledge:
    """What waits, what is stopped and how destinations do. Safe to use from several threads."""

    def __init__(self, config: RelayConfig, paces: Mapping[str, Pace]) -> None:
        self._config = config
        self._paces = paces
        self._waiting = Waiting((), frozenset(), frozenset())
        self._known_at = -_HOLDS
        self._lock = threading.Lock()

    def refresh(self, connection: Connection, *, anew: bool = False) -> Waiting:
        """What is known, read again where it is old, or `anew`.

        A destination that fails and that nothing waits for fails no more.

        Raises:
            TicketflowError: the drain may not go on.
        """
        with self._lock:
            if anew or time.monotonic() - self._known_at >= _HOLDS:
                if self._config.agreed is not None:
                    self._config.agreed(connection)
                versions = {name: pace.version for name, pace in self._paces.items()}
                self._waiting, self._known_at = due.waiting(connection), time.monotonic()
                end_failures(connection, self._waiting.idle(self._config.delivery))
                for name, pace in self._paces.items():
                    pace.learn(self._waiting.condition(name), versions[name])
            return self._waiting

    def wanted(self, connection: Connection, destination: str, *, anew: bool) -> Wanted:
        """What may be claimed for `destination`, going by what is known, or is found out `anew`."""
        delivery, waiting, pace = self._config.delivery, self.refresh(connection, anew=anew), self._paces[destination]
        rests = pace.condition.rests and not pace.probing
        return Wanted(
            owner=self._config.owner,
            lease=self._config.leases[destination],
            destination=destination,
            types=() if rests else waiting.claimable(delivery, destination, trying=pace.probing),
            skipping=waiting.skipping(delivery),
            committing=tuple(
                kind for kind in waiting.types if delivery.route_to(kind, destination).remembers is not None
            ),
        )

    def is_stopped(self, event_type: str, destination: str) -> bool:
        """Whether people stopped events of this type or to this destination, as far as is known; asks nobody."""
        return self._waiting.is_stopped(event_type, destination)
