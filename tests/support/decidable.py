"""Events in the states in which people decide about them."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import Engine

from tests.outbox.relay.world import add, change, event


def put(engine: Engine, name: str, state: str, kind: str = "Told") -> UUID:
    """An event of that name in a state that waits for a person."""
    add(engine, name, kind=kind)
    if state == "HELD":
        change(engine, name, "state = 'HELD', available_at = NULL")
    elif state != "PENDING":
        change(engine, name, "state = 'INFLIGHT', owner = 'x', lease_until = now(), attempts = 1")
        change(
            engine,
            name,
            f"state = '{state}', owner = NULL, lease_until = NULL, available_at = NULL, last_attempt_at = now()",
        )
    event_id: UUID = event(engine, name).event_id
    return event_id
