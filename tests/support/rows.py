"""Rows that the application would have written, made in a line each, with defaults that do not matter to the test."""

from __future__ import annotations

import itertools
from datetime import UTC, date, datetime
from typing import Any

from sqlalchemy import Engine, text

_numbers = itertools.count(1)


def instant(iso: str) -> datetime:
    """An aware UTC instant from ISO text; text without an offset is UTC."""
    moment = datetime.fromisoformat(iso)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def insert(engine: Engine, table: str, **values: Any) -> int:
    """Insert one row and return its id."""
    columns, places = ", ".join(values), ", ".join(f":{name}" for name in values)
    with engine.begin() as connection:
        statement = text(f"INSERT INTO {table} ({columns}) VALUES ({places}) RETURNING id")
        return int(connection.execute(statement, values).scalar_one())


def add_organization(engine: Engine, **values: Any) -> int:
    """An organization in Madrid that sells in EUR at 10 % commission with 20 % tax on it, since 2020."""
    ref = f"org-{next(_numbers)}"
    defaults = {
        "external_ref": ref, "name": ref, "timezone": "Europe/Madrid", "currency": "EUR",
        "commission_rate_bps": 1000, "commission_tax_bps": 2000, "joined_on": date(2020, 1, 1),
    }  # fmt: skip
    return insert(engine, "organization", **defaults | values)


def add_movement(engine: Engine, organization_id: int, amount: int, occurred_at: str, **values: Any) -> int:
    """A capture of `amount` (minor units) at the ISO instant `occurred_at`, at 10 % and 20 %."""
    defaults = {
        "external_ref": f"movement-{next(_numbers)}", "kind": "CAPTURE", "currency": "EUR",
        "commission_rate_bps": 1000, "commission_tax_bps": 2000,
    }  # fmt: skip
    fixed = {"organization_id": organization_id, "amount": amount, "occurred_at": instant(occurred_at)}
    return insert(engine, "money_movement", **defaults | fixed | values)


def add_void(engine: Engine, movement_id: int) -> int:
    """The void of a movement: opposite amount, same instant, same rates."""
    with engine.begin() as connection:
        return int(
            connection.execute(
                text("""
                    INSERT INTO money_movement (external_ref, organization_id, kind, is_void, reverses_id, currency,
                        amount, commission_rate_bps, commission_tax_bps, occurred_at, reason)
                    SELECT external_ref || '-void', organization_id, kind, true, id, currency,
                        -amount, commission_rate_bps, commission_tax_bps, occurred_at, reason
                    FROM money_movement WHERE id = :id RETURNING id
                """),
                {"id": movement_id},
            ).scalar_one()
        )


def add_event(engine: Engine, organization_id: int, **values: Any) -> int:
    """An open event of two hours in Madrid."""
    ref = f"event-{next(_numbers)}"
    defaults = {
        "external_ref": ref, "organization_id": organization_id, "title": ref, "status": "OPEN",
        "starts_at": instant("2026-06-01T18:00"), "ends_at": instant("2026-06-01T20:00"), "timezone": "Europe/Madrid",
    }  # fmt: skip
    return insert(engine, "event", **defaults | values)


def add_reservation(engine: Engine, event_id: int, **values: Any) -> int:
    """An active reservation of two seats that expires fifteen minutes after it was made."""
    defaults = {
        "public_ref": f"reservation-{next(_numbers)}", "event_id": event_id, "buyer_email": "buyer@example.com",
        "quantity": 2, "status": "ACTIVE", "created_at": instant("2026-05-01T10:00"),
        "expires_at": instant("2026-05-01T10:15"),
    }  # fmt: skip
    return insert(engine, "reservation", **defaults | values)
