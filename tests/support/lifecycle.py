"""Reservations and events whose time is up, and what becomes of them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Engine, text

from tests.support.rows import add_event, add_movement, add_organization, add_reservation, instant
from ticketflow_orch.ticketing.lifecycle import LifecycleRules

NOW = instant("2026-06-02T04:30")
GRACE = timedelta(minutes=30)
MICROSECOND = timedelta(microseconds=1)

# For the session that a test is about; add_movement has one of its own.
CAPTURE = text("""
    INSERT INTO money_movement (external_ref, organization_id, reservation_id, kind, currency, amount,
        commission_rate_bps, commission_tax_bps, occurred_at)
    VALUES (:ref, :organization, :held, 'CAPTURE', 'EUR', 100, 0, 0, now())
""")


def rules(now: datetime = NOW, **changes: Any) -> LifecycleRules:
    return LifecycleRules(now=now, run_id="run", **changes)


def paid(engine: Engine, **values: Any) -> tuple[int, int, int]:
    """An organization, its reservation that nobody confirmed, and the capture of its money."""
    organization = add_organization(engine)
    held = add_reservation(engine, add_event(engine, organization), public_ref="paid", **values)
    return organization, held, add_movement(engine, organization, 100, "2026-05-01T10:05", reservation_id=held)


def give_back(engine: Engine, organization: int, capture: int, amount: int = -100, **values: Any) -> int:
    """A refund of `capture` that does not name the reservation."""
    refund = {"kind": "REFUND", "reverses_id": capture} | values
    return add_movement(engine, organization, amount, "2026-05-02T10:00", **refund)


def states(engine: Engine, table: str, *ids: int) -> list[str]:
    with engine.connect() as connection:
        rows = connection.execute(text(f"SELECT id, status FROM {table} WHERE id = ANY (:ids)"), {"ids": list(ids)})
        found = {row.id: row.status for row in rows}
    return [found[one] for one in ids]


def told(engine: Engine) -> list[tuple[Any, ...]]:
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT event_type, aggregate_id FROM outbox_event ORDER BY 1, 2"))
        return [tuple(row) for row in rows]


def past(engine: Engine, organization: int, days: int) -> int:
    """An event that ended so many days ago, which its reference tells."""
    ended = NOW - timedelta(days=days)
    times = {"starts_at": ended - timedelta(hours=2), "ends_at": ended}
    return add_event(engine, organization, external_ref=f"over-{days}", **times)
