"""The books of a month: what business they are about, and what they say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, text

from tests.support.oracle import AMOUNTS
from tests.support.settled import MARCH
from ticketflow_orch.settlement import invariants

Rows = tuple[tuple[Any, ...], ...]

ORGANIZATIONS = 240
CHUNK_SIZE = 20


@dataclass(frozen=True, slots=True)
class Books:
    """Every business column that a settlement of March writes; not who wrote it, in which pass, and when."""

    ledger: Rows
    totals: Rows
    periods: Rows
    events: Rows
    parked: Rows
    dishonest: int


def read_books(engine: Engine) -> Books:
    with engine.connect() as connection:
        return Books(
            ledger=_rows(
                connection,
                f"SELECT organization_id, month, currency, origin_month, sequence, {', '.join(AMOUNTS)}, reason"
                " FROM ledger_entry ORDER BY organization_id, month, currency, origin_month, sequence",
            ),
            totals=_rows(connection, "SELECT * FROM settlement_total ORDER BY month, currency"),
            periods=_rows(connection, "SELECT month, state FROM settlement_period ORDER BY month"),
            events=_rows(
                connection,
                "SELECT event_type, aggregate_type, aggregate_id, dedupe_key, payload::text, occurred_at"
                " FROM outbox_event ORDER BY id",
            ),
            parked=_rows(connection, "SELECT organization_id, month, error FROM parked_organization ORDER BY 1"),
            dishonest=invariants.dishonest_organizations(connection, MARCH).count,
        )


def fill(engine: Engine) -> None:
    """Business in five zones and three currencies, around the edges of March too; one organization is poisoned.

    The same rows each time: ids are given, amounts come of them.
    """
    with engine.begin() as connection:
        for statement in (_ORGANIZATIONS, _CAPTURES, _REVERSALS, _POISON, _NUMBERED):
            connection.execute(text(statement), {"organizations": ORGANIZATIONS})


def _rows(connection: Connection, query: str) -> Rows:
    return tuple(tuple(row) for row in connection.execute(text(query)))


_ORGANIZATIONS = """
    INSERT INTO organization (id, external_ref, name, timezone, currency, commission_rate_bps, commission_tax_bps,
        joined_on, left_on)
    SELECT id, 'scene-' || id, 'scene-' || id,
        (ARRAY['Pacific/Kiritimati', 'Asia/Tokyo', 'Europe/Madrid', 'America/New_York', 'Pacific/Pago_Pago']
            )[id % 5 + 1],
        (ARRAY['EUR', 'JPY', 'KWD'])[id % 3 + 1], id * 37 % 3000, (ARRAY[0, 700, 2000])[id % 3 + 1],
        CASE WHEN id % 19 = 0 THEN date '2026-04-01' ELSE date '2020-01-01' END,
        CASE WHEN id % 17 = 0 THEN date '2026-02-28' + id % 2 * 400 END
    FROM generate_series(1, CAST(:organizations AS integer)) AS id
"""

_CAPTURES = """
    INSERT INTO money_movement (id, external_ref, organization_id, kind, currency, amount, commission_rate_bps,
        commission_tax_bps, occurred_at)
    OVERRIDING SYSTEM VALUE
    SELECT organization.id * 100 + n, 'capture-' || organization.id * 100 + n, organization.id, 'CAPTURE',
        CASE WHEN n = 7 THEN 'USD' ELSE currency END, (organization.id * 7919 + n * 104729) % 100000 + 1,
        commission_rate_bps, commission_tax_bps,
        timestamptz '2026-02-28 09:00Z' + interval '1 hour' * ((organization.id * 31 + n * 97) % 792)
    FROM organization, generate_series(1, 9) AS n
    WHERE organization.id % 11 <> 0
"""

_REVERSALS = """
    INSERT INTO money_movement (id, external_ref, organization_id, kind, reverses_id, currency, amount,
        commission_rate_bps, commission_tax_bps, occurred_at)
    OVERRIDING SYSTEM VALUE
    SELECT id + 50, 'reversal-' || id, organization_id, CASE WHEN id % 2 = 0 THEN 'REFUND' ELSE 'CHARGEBACK' END, id,
        currency, -(amount + 1) / 2, commission_rate_bps, commission_tax_bps, occurred_at + interval '2 days'
    FROM money_movement WHERE id % 4 < 2
"""

_POISON = """
    INSERT INTO money_movement (id, external_ref, organization_id, kind, currency, amount, commission_rate_bps,
        commission_tax_bps, occurred_at)
    OVERRIDING SYSTEM VALUE
    SELECT 7700 + n, 'poison-' || n, 77, 'CAPTURE', 'EUR', 4611686018427387904, 0, 0, '2026-03-10 10:00Z'
    FROM generate_series(1, 3) AS n
"""

# What is recorded next comes after all of them.
_NUMBERED = "SELECT setval('money_movement_id_seq', (SELECT max(id) FROM money_movement))"
