"""Months settled and closed, the ledger as it then is, and rows that are written past every guard."""

from __future__ import annotations

import threading
from datetime import datetime
from typing import Any

from sqlalchemy import Engine, text

from tests.support.rows import add_movement, instant
from ticketflow_orch.months import Month
from ticketflow_orch.settlement import (
    SettlementOptions,
    SettlementResult,
    settle_month,
)
from ticketflow_orch.settlement.passes import begin_or_join, plan
from ticketflow_orch.settlement.posting import Pass

MARCH = Month(2026, 3)
NOW = instant("2026-06-15T12:00")


def settle(
    engine: Engine, month: Month = MARCH, now: datetime = NOW, stop: threading.Event | None = None, **options: Any
) -> SettlementResult:
    return settle_month(
        engine, month, now=now, first_month=Month(1970, 1), run_id="run", settled_by="test", stop=stop,
        options=SettlementOptions(**options),
    )  # fmt: skip


def ledger(engine: Engine, *columns: str) -> list[tuple[Any, ...]]:
    names = (
        ", ".join(columns) or "organization_id, currency, sequence, captures, refunds, commission, commission_tax, net"
    )
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text(f"SELECT {names} FROM ledger_entry ORDER BY 1, 2, 3"))]


def close_month(engine: Engine, month: Month) -> None:
    """Close the books of a settled month."""
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE settlement_period SET state = 'CLOSING' WHERE month = :month"), {"month": month.first_day}
        )
        closed = connection.execute(
            text("""
                UPDATE settlement_period SET state = 'CLOSED', closed_at = clock_timestamp(), closed_by = 'test',
                    closed_role = current_user
                WHERE month = :month
            """),
            {"month": month.first_day},
        )
        assert closed.rowcount == 1


def tamper(engine: Engine, statement: str) -> None:
    """Write past the triggers, as a superuser might."""
    with engine.begin() as connection:
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        connection.execute(text(statement))


KEPT = {"commission_rate_bps": 0, "commission_tax_bps": 0}


def refund(engine: Engine, organization: int, capture: int, amount: int, occurred_at: str, **values: object) -> int:
    return add_movement(
        engine, organization, -amount, occurred_at, kind="REFUND", reverses_id=capture, **values
    )  # fmt: skip


def nets(engine: Engine, *organizations: int) -> list[int]:
    rows = ledger(engine, "month", "sequence", "organization_id", "net")
    return [net for _, _, organization, net in rows if not organizations or organization in organizations]


def begin_and_plan(engine: Engine) -> Pass:
    """A pass of March as it stands when the one who planned it is gone."""
    settlement, _ = begin_or_join(engine, MARCH)
    plan(engine, settlement, 20_000)
    return settlement
