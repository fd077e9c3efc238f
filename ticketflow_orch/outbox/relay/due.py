"""Looking: which events may go now, found by index, without looking at what was delivered or waits for others.

Polled by state, never by a position: an event that is committed late is found all the same. Only heads go: an event
waits for every earlier one of its aggregate that has not ended (dead ones excepted, where their route says so).

Events that may not go yet stand among those that may, so a look is bounded, and there are two. The first takes the
oldest due events of each type, a few for each one that is wanted. Where that window is full of events that wait for an
earlier one (a hundred thousand behind one head, say), the second goes from aggregate to aggregate and asks each for
its head: one index probe for an aggregate with something waiting, however many events it has, and no more than
`VISITED` of them in a statement; the next one goes on from there. So a hundred thousand blocked aggregates cost fifty
statements to know that nothing may go, and a hundred thousand blocked events of one aggregate cost two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import Connection

from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.outbox.delivery.configuration import Delivery, Route
from ticketflow_orch.outbox.relay.conditions import WELL, Condition, conditions

VISITED = 2_000
PROBED = 10_000


@dataclass(frozen=True, slots=True)
class Waiting:
    """The types of all events that have not ended, what is stopped, and how each destination does."""

    types: tuple[str, ...]
    stopped_types: frozenset[str]
    stopped_destinations: frozenset[str]
    conditions: Mapping[str, Condition] = field(default_factory=dict)

    def claimable(self, delivery: Delivery, destination: str, *, trying: bool = False) -> tuple[str, ...]:
        """The types whose events may go to `destination` now; `trying`: one may, though it fails."""
        if self.condition(destination).rests and not trying:
            return ()
        return tuple(
            kind
            for kind in self.types
            if self._goes(delivery.route(kind), destination) and not self.is_stopped(kind, destination)
        )

    def _goes(self, route: Route, destination: str) -> bool:
        if route.destination == destination:
            return True
        # The other way is for as long as the first is closed.
        second = route.otherwise is not None and route.otherwise.destination == destination
        return second and (route.destination in self.stopped_destinations or self.condition(route.destination).is_away)

    def condition(self, destination: str) -> Condition:
        """How `destination` does."""
        return self.conditions.get(destination, WELL)

    def idle(self, delivery: Delivery) -> tuple[str, ...]:
        """The destinations that fail and that nothing waits for: it was ended by hand, or goes elsewhere by now."""
        routes = [delivery.route(kind) for kind in self.types]
        waited_for = {route.destination for first in routes for route in (first, first.otherwise) if route is not None}
        return tuple(name for name, known in self.conditions.items() if known.is_failing and name not in waited_for)

    def is_stopped(self, event_type: str, destination: str) -> bool:
        """Whether nothing of `event_type`, or nothing to `destination`, is to be sent."""
        return event_type in self.stopped_types or destination in self.stopped_destinations

    def skipping(self, delivery: Delivery) -> tuple[str, ...]:
        """The types whose dead events let later ones of their aggregate pass."""
        return tuple(kind for kind in self.types if delivery.route(kind).when_dead == "skip")


@dataclass(slots=True)
class Round:
    """Where the walk from aggregate to aggregate has got to; `closed` when it came to the last one."""

    after: tuple[str, str] = field(default=("", ""))
    closed: bool = False


def waiting(connection: Connection) -> Waiting:
    """What there is to deliver at all: one index probe a type; and how the destinations do."""
    known = conditions(connection)
    rows = connection.exec_driver_sql(_WAITING).all()
    return Waiting(
        types=tuple(row.name for row in rows if row.what == "TYPE"),
        stopped_types=frozenset(row.name for row in rows if row.what == "EVENT_TYPE"),
        stopped_destinations=frozenset(row.name for row in rows if row.what == "DESTINATION"),
        conditions=known,
    )


def is_due(connection: Connection, delivery: Delivery, walk: Round) -> bool:
    """Whether an event is found that may go now, or that was left by a holder whose lease is over. Reads only.

    A few index probes a type, as a rule. Only where the oldest of a type all wait for earlier events are aggregates
    asked for their heads too, `PROBED` of them; `walk` goes on, so that the next question is about others.
    """
    known = waiting(connection)
    types = [kind for destination in delivery.destinations for kind in known.claimable(delivery, destination)]
    if not types:
        return False
    values = {
        "types": types,
        "skipping": list(known.skipping(delivery)),
        "window": 100,
        "visited": PROBED,
        "after_type": walk.after[0],
        "after_id": walk.after[1],
    }
    oldest = connection.exec_driver_sql(_DUE_OLDEST, values).one()
    if oldest.found or not oldest.is_full:
        return bool(oldest.found)
    row = connection.exec_driver_sql(_DUE_SCATTERED, values).one()
    walk.closed = row.visited < PROBED
    walk.after = ("", "") if walk.closed else (row.last_type, row.last_id)
    return bool(row.found)


_WAITING = sql(__file__, "waiting")

# What the statements of `fetch` are made of too. Their binds: types, window, skipping; visited, after_type, after_id.
_MAY_BLOCK = sql(__file__, "may_block")
OLDEST = sql(__file__, "oldest")
HEADS = sql(__file__, "heads", may_block=_MAY_BLOCK)
IS_HEAD = sql(__file__, "is_head", may_block=_MAY_BLOCK)
IS_FULL = sql(__file__, "is_full")
IS_LOST = sql(__file__, "is_lost")

_DUE_OLDEST = sql(__file__, "due_oldest", oldest=OLDEST, is_lost=IS_LOST, is_head=IS_HEAD, is_full=IS_FULL)
_DUE_SCATTERED = sql(__file__, "due_scattered", heads=HEADS, is_lost=IS_LOST)
