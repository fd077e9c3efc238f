"""Alerts: told once each, as events in the outbox, and remembered for ever."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from ticketflow_orch import outbox
from ticketflow_orch.outbox import OutboxEvent, Publish

# The aggregate type of all alerts.
ALERT = "alert"


@dataclass(frozen=True, slots=True)
class Alert:
    """Something that operators must learn once: `kind` is the event's type, `key` what it is about."""

    kind: str
    key: str
    payload: Mapping[str, Any]


def alert_once(connection: Connection, alert: Alert, now: datetime, publish: Publish = outbox.append) -> bool:
    """Tell `alert` unless that was done before; returns whether it was told now."""
    fresh = connection.execute(
        text("INSERT INTO alert (kind, key) VALUES (:kind, :key) ON CONFLICT DO NOTHING"),
        {"kind": alert.kind, "key": alert.key},
    ).rowcount
    if fresh:
        name = f"{alert.kind} {alert.key}"
        publish(connection, OutboxEvent(ALERT, name, alert.kind, alert.payload, name, now))
    return fresh == 1
