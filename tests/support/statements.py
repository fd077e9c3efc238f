"""Months that are settled and closed, with balances worked out row by row from the ledger, and their statements."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, text

from tests.support.rows import instant
from tests.support.settled import settle
from ticketflow_orch.months import Month
from ticketflow_orch.statements import StatementOptions, StatementsResult, issue_statements
from ticketflow_orch.statements.storage import Place

FEBRUARY, MARCH, APRIL = Month(2026, 2), Month(2026, 3), Month(2026, 4)
NOW = instant("2026-06-15T12:00")
MINIMUM = 5_000


def close(engine: Engine, month: Month, parked: Collection[int] = ()) -> None:
    """Settle the month and close its books; the `parked` organizations get no balance."""
    settle(engine, month)
    with engine.begin() as connection:
        run(connection, "UPDATE settlement_period SET state = 'CLOSING' WHERE month = :month", month)
        for row in run(connection, _KEYS, month):
            if row.organization_id not in parked:
                _write_balance(connection, month, row.organization_id, row.currency)
        run(
            connection,
            """
            UPDATE settlement_period SET state = 'CLOSED', closed_at = now(), closed_by = 'test',
                closed_role = current_user
            WHERE month = :month
            """,
            month,
        )


def state(engine: Engine, folder: Path, month: Month = MARCH, **options: Any) -> StatementsResult:
    return issue_statements(engine, month, StatementOptions(place=Place(folder), **options), now=NOW)


def run(connection: Connection, statement: str, month: Month, **parameters: Any) -> Any:
    return connection.execute(text(statement), {"month": month.first_day} | parameters)


def _write_balance(connection: Connection, month: Month, organization: int, currency: str) -> None:
    key = {"organization": organization, "currency": currency}
    before = run(connection, _BEFORE, month, **key).one_or_none()
    previous, opening = (before.month, before.closing) if before else (None, 0)
    net, returned = run(connection, _SINCE, month, **key, previous=previous).one()
    run(
        connection, "UPDATE payout SET returned_month = :month WHERE returned_month IS NULL AND state IN "
        "('REJECTED', 'RETURNED') AND organization_id = :organization AND currency = :currency", month, **key,
    )  # fmt: skip
    due = opening + net + returned
    payable = due if due >= MINIMUM else 0
    values = key | {"previous": previous, "opening": opening, "net": net, "returned": returned, "due": due}
    run(connection, _BALANCE, month, **values, payable=payable, closing=due - payable)


_KEYS = """
    SELECT organization_id, currency FROM ledger_entry WHERE month = :month
    UNION
    SELECT organization_id, currency FROM organization_balance WHERE month < :month
    GROUP BY organization_id, currency HAVING (array_agg(closing ORDER BY month DESC))[1] <> 0
    ORDER BY 1, 2
"""

_BEFORE = """
    SELECT month, closing FROM organization_balance
    WHERE organization_id = :organization AND currency = :currency AND month < :month ORDER BY month DESC LIMIT 1
"""

_SINCE = """
    SELECT
        (SELECT CAST(coalesce(sum(net), 0) AS bigint) FROM ledger_entry
            WHERE organization_id = :organization AND currency = :currency AND month <= CAST(:month AS date)
                AND month > coalesce(CAST(:previous AS date), '-infinity')),
        (SELECT CAST(coalesce(sum(amount), 0) AS bigint) FROM payout
            WHERE organization_id = :organization AND currency = :currency AND returned_month IS NULL
                AND state IN ('REJECTED', 'RETURNED'))
"""

_BALANCE = """
    INSERT INTO organization_balance
        (organization_id, currency, month, previous_month, opening, net, returned, due, payable, closing)
    VALUES (:organization, :currency, :month, :previous, :opening, :net, :returned, :due, :payable, :closing)
"""
