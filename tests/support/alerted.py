"""Alerts as tests note them, and as they stand in the outbox."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine, text

from tests.support.rows import instant
from ticketflow_orch.db.engine import transaction
from ticketflow_orch.outbox.alerts import Alert, alert_all

NOW = instant("2026-06-02T02:30")


def told(engine: Engine) -> list[tuple[str, dict[str, Any]]]:
    """What went to the outbox: the type of each event, and what it says."""
    with engine.connect() as connection:
        rows = connection.execute(
            text("SELECT event_type, payload FROM outbox_event WHERE aggregate_type = 'alert' ORDER BY id")
        )
        return [(row.event_type, row.payload) for row in rows]


def kinds(engine: Engine) -> list[str]:
    return [kind for kind, _ in told(engine)]


def note(engine: Engine, *alerts: Alert) -> list[Alert]:
    with transaction(engine) as connection:
        return list(alert_all(connection, alerts, NOW))
