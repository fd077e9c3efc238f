"""How one drain delivers: what it was given, and what follows from that. Nothing in here changes while it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property

from sqlalchemy import Connection, Engine

from ticketflow_orch.outbox.delivery.configuration import Allowance, Delivery
from ticketflow_orch.outbox.delivery.handlers import EventKind
from ticketflow_orch.outbox.relay.backoff import Backoff


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a destination that fails is left alone: `first`, doubled each time, at most `longest`, by chance less.

    `longest` is at most ten minutes: what is further away is of a clock that was set back. `asked` bounds what the
    destination may ask for by itself. Operators are alerted when it has failed for `alerted_after`.
    """

    first: timedelta = timedelta(seconds=1)
    longest: timedelta = timedelta(minutes=1)
    asked: timedelta = timedelta(hours=1)
    alerted_after: timedelta = timedelta(minutes=15)


@dataclass(frozen=True)
class RelayConfig:
    """What `drain` was given.

    `owner` claims events and stops destinations. `now` says the business time at which alerts happen. `in_flight`
    takes the place of each destination's own `concurrency`. `batch`: the events claimed for a destination at once.
    `patience`: within so many seconds what is claimed is begun, or given back. `agreed` raises where the drain may not
    go on. A `resident` drain waits for what comes.
    """

    engine: Engine
    delivery: Delivery
    kinds: Mapping[str, EventKind]
    owner: str
    now: Callable[[], datetime]
    in_flight: int | None
    batch: int
    patience: float
    backoff: Backoff
    patience_with: Patience
    agreed: Callable[[Connection], None] | None
    resident: bool

    @cached_property
    def limits(self) -> Mapping[str, float]:
        """How many seconds an attempt at each destination may take at most."""
        routes = self.delivery.every_route()
        return {
            name: max((route.limit.total_seconds() for route in routes if route.destination == name), default=0.0)
            for name in self.delivery.destinations
        }

    @cached_property
    def leases(self) -> Mapping[str, float]:
        """For how many seconds an event is claimed for each destination: it may wait to be begun as well."""
        return {name: self.patience + limit for name, limit in self.limits.items()}

    def allowance(self, destination: str) -> Allowance:
        """What `destination` is sent at most."""
        allowance = self.delivery.allowance(destination)
        return allowance if self.in_flight is None else Allowance(allowance.rate, self.in_flight)
