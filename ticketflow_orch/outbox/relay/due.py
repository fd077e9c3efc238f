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

# One plan is right whatever the parameters: from the few rows found first, by an index, to each row. The planner, which
# knows neither the window nor how soon a limit is reached, would read the whole outbox instead; and planning anew costs
# as much as a small claim.
_PLANNING = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}
PLANNED_ONCE = "; ".join(f"SET {name} = {value}" for name, value in _PLANNING.items())
PLANNED_AS_EVER = "; ".join(f"RESET {name}" for name in _PLANNING)


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
    found, full = connection.exec_driver_sql(_DUE_OLDEST, values).one()
    if found or not full:
        return bool(found)
    row = connection.exec_driver_sql(_DUE_SCATTERED, values).one()
    walk.closed = row.visited < PROBED
    walk.after = ("", "") if walk.closed else (row.last_type, row.last_id)
    return bool(row.found)


_WAITING = """
    WITH RECURSIVE kind (name) AS (
        (SELECT event_type FROM outbox_event WHERE ended_at IS NULL ORDER BY event_type LIMIT 1)
        UNION ALL
        SELECT (SELECT event_type FROM outbox_event WHERE ended_at IS NULL AND event_type > kind.name
            ORDER BY event_type LIMIT 1)
        FROM kind WHERE name IS NOT NULL
    )
    SELECT 'TYPE' AS what, name FROM kind WHERE name IS NOT NULL
    UNION ALL
    SELECT kind, name FROM delivery_stop
"""

# A statement's own time serves as index condition, which the ever-changing clock cannot. What is in flight stands in
# front of what could go, and is left out: it would fill the window. The types take turns, so that none waits for
# another to be drained.
OLDEST = """
    seen AS MATERIALIZED (
        SELECT due.*
        FROM unnest(%(types)s::text[]) AS kind (event_type) CROSS JOIN LATERAL (
            SELECT event_type, aggregate_type, aggregate_id, id, state, lease_until,
                row_number() OVER (ORDER BY available_at, id) AS turn
            FROM outbox_event
            WHERE event_type = kind.event_type AND ended_at IS NULL AND available_at <= statement_timestamp()
                AND (state = 'PENDING' OR lease_until < statement_timestamp())
            ORDER BY available_at, id LIMIT %(window)s::bigint
        ) AS due
        ORDER BY turn
    )
"""

# Only the index on what waits has this order, in either direction. An equality would make the key as good an order, and
# the planner would go through all that was ever delivered.
MAY_BLOCK = "ended_at IS NULL AND NOT (state = 'DEAD' AND event_type = ANY (%(skipping)s::text[]))"

HEADS = f"""
    head (aggregate_type, aggregate_id, id, event_type, state, available_at, lease_until) AS (
        (SELECT aggregate_type, aggregate_id, id, event_type, state, available_at, lease_until FROM outbox_event
        WHERE {MAY_BLOCK} AND (aggregate_type, aggregate_id) > (%(after_type)s::text, %(after_id)s::text)
        ORDER BY aggregate_type, aggregate_id, id LIMIT 1)
        UNION ALL
        SELECT next.*
        FROM head AS last CROSS JOIN LATERAL (
            SELECT aggregate_type, aggregate_id, id, event_type, state, available_at, lease_until FROM outbox_event
            WHERE {MAY_BLOCK} AND (aggregate_type, aggregate_id) > (last.aggregate_type, last.aggregate_id)
            ORDER BY aggregate_type, aggregate_id, id LIMIT 1
        ) AS next
    )
"""

# Backwards from the event itself: whatever waits, waits for its neighbour, while what has ended lies further back, as
# index entries that nobody has cleared away yet.
IS_HEAD = f"""
    (SELECT id FROM outbox_event AS earlier
    WHERE {MAY_BLOCK} AND (aggregate_type, aggregate_id) >= (seen.aggregate_type, seen.aggregate_id)
        AND (aggregate_type, aggregate_id, id) < (seen.aggregate_type, seen.aggregate_id, seen.id)
    ORDER BY aggregate_type DESC, aggregate_id DESC, id DESC LIMIT 1) IS NULL
"""

FULL = """
    coalesce((SELECT bool_or(count >= %(window)s::bigint)
        FROM (SELECT count(*) AS count FROM seen GROUP BY event_type) AS counted), false)
"""

IS_LOST = "state = 'INFLIGHT' AND lease_until < clock_timestamp()"

_DUE_OLDEST = sql(__file__, "due_oldest", oldest=OLDEST, is_lost=IS_LOST, is_head=IS_HEAD, full=FULL)

_DUE_SCATTERED = sql(__file__, "due_scattered", heads=HEADS, is_lost=IS_LOST)
