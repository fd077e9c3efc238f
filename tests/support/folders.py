"""Import folders: a small good one to start from, changed and written out as the test wants it."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy import Engine, text

Rows = list[dict[str, str]]
Story = dict[str, Rows]

TABLES = ("organization", "event", "reservation", "money_movement")


def story() -> Story:
    """Two organizations, three events, four reservations, and every kind of movement; all of it good."""
    organization = {
        "external_ref": "o1", "name": "Teatro Ñ", "timezone": "Europe/Madrid", "currency": "EUR",
        "commission_rate_bps": "1000", "commission_tax_bps": "2100", "joined_on": "2025-01-15", "left_on": "",
        "contact_email": "", "locale": "es-ES",
    }  # fmt: skip
    event = {
        "external_ref": "e1", "organization_ref": "o1", "title": "Carmen", "status": "OPEN",
        "starts_at": "2026-06-01T20:00:00+02:00", "ends_at": "2026-06-01T23:00:00+02:00", "timezone": "Europe/Madrid",
    }  # fmt: skip
    reservation = {
        "external_ref": "r1", "event_ref": "e1", "buyer_email": "ana@example.com", "quantity": "2",
        "status": "CONFIRMED", "created_at": "2026-05-01T10:00:00Z", "expires_at": "2026-05-01T10:15:00Z",
        "confirmed_at": "2026-05-01T10:05:00Z",
    }  # fmt: skip
    movement = {
        "external_ref": "m1", "organization_ref": "o1", "reservation_ref": "r1", "kind": "CAPTURE", "currency": "EUR",
        "amount": "5000", "commission_rate_bps": "1000", "commission_tax_bps": "2100", "reverses_ref": "",
        "occurred_at": "2026-05-01T10:05:00Z", "is_void": "", "reason": "",
    }  # fmt: skip
    free = {"reservation_ref": "", "commission_rate_bps": "0", "commission_tax_bps": "0", "reason": "as agreed"}
    return {
        "organizations": [
            organization,
            organization | {"external_ref": "o2", "timezone": "Asia/Tokyo", "currency": "JPY", "left_on": "2026-06-30"},
        ],
        "events": [
            event,
            event | {"external_ref": "e2", "organization_ref": "o2", "title": 'Noh, "old"\nand new'},
            event | {"external_ref": "e3", "status": "CLOSED"},
        ],
        "reservations": [
            reservation,
            reservation | {"external_ref": "r2", "event_ref": "e2"},
            reservation | {"external_ref": "r3", "status": "ACTIVE", "confirmed_at": ""},
            reservation | {"external_ref": "r4", "event_ref": "e3", "status": "EXPIRED", "confirmed_at": ""},
        ],
        "money_movements": [
            movement | {"external_ref": "m2", "kind": "REFUND", "amount": "-5000", "reverses_ref": "m1"},
            movement,
            movement | {"external_ref": "m3", "kind": "CHARGEBACK", "amount": "-5000", "reverses_ref": "m1"},
            movement | {"external_ref": "m4", "kind": "CHARGEBACK_REVERSAL", "reverses_ref": "m3"},
            movement | {"external_ref": "m5", "amount": "-5000", "reverses_ref": "m1", "is_void": "true"},
            movement | {"external_ref": "m6", "kind": "FEE", "amount": "-100"} | free,
            movement | {"external_ref": "m7", "kind": "MANUAL", "amount": "250"} | free,
        ],
    }


def csv_text(rows: Sequence[Mapping[str, str]]) -> str:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def write_folder(folder: Path, content: Story, ending: str = ".csv") -> Path:
    """Write the rows to `folder` as files with that ending; kinds without rows get no file."""
    folder.mkdir(exist_ok=True)
    for kind, rows in content.items():
        path = folder / f"{kind}{ending}"
        if not rows:
            path.unlink(missing_ok=True)
        elif ending == ".parquet":
            pq.write_table(pa.table({name: [row[name] or None for row in rows] for name in rows[0]}), path)
        elif ending == ".csv.gz":
            path.write_bytes(gzip.compress(csv_text(rows).encode()))
        else:
            path.write_text(csv_text(rows), encoding="utf-8", newline="")
    return folder


def stored(engine: Engine) -> dict[str, list[Any]]:
    """Every imported row as the tables hold it, without what differs from import to import."""
    named = {
        "organization": "organization",
        "event": "event JOIN organization ON organization.id = organization_id",
        "reservation": "reservation JOIN event ON event.id = event_id",
        "money_movement": """money_movement LEFT JOIN organization ON organization.id = organization_id
            LEFT JOIN reservation ON reservation.id = reservation_id
            LEFT JOIN money_movement AS target ON target.id = money_movement.reverses_id""",
    }
    parents = {
        "organization": "NULL", "event": "organization.external_ref", "reservation": "event.external_ref",
        "money_movement": "ARRAY[organization.external_ref, reservation.public_ref, target.external_ref]",
    }  # fmt: skip
    own = "id import_id public_id recorded_at organization_id event_id reservation_id reverses_id"
    with engine.connect() as connection:
        return {
            table: list(
                connection.execute(
                    text(f"""
                        SELECT to_jsonb({table}) - string_to_array('{own}', ' '), {parents[table]} FROM {named[table]}
                        ORDER BY to_jsonb({table}) ->> 'external_ref', to_jsonb({table}) ->> 'public_ref'
                    """)
                )
            )
            for table in TABLES
        }


def counts(engine: Engine) -> dict[str, int]:
    """How many rows each table that an import touches has."""
    with engine.connect() as connection:
        return {
            table: connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()
            for table in (*TABLES, "data_import")
        }


def column(engine: Engine, query: str) -> list[Any]:
    """The first column of what the query finds."""
    with engine.connect() as connection:
        return list(connection.execute(text(query)).scalars())
