"""Books by the test's hand: closing a month, what its balances say, payouts as a provider would leave them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Engine, text

from tests.support.rows import add_movement
from tests.support.settled import NOW, settle
from tests.support.sql_statements import execute
from ticketflow_orch.closing import ClosedBooks, ClosingOptions, close_month, invariants
from ticketflow_orch.months import Month
from ticketflow_orch.periods.state import closed_months, settled_months
from ticketflow_orch.settlement import invariants as settlement_audit

JANUARY, FEBRUARY, MARCH, APRIL = (Month(2026, number) for number in range(1, 5))
FIRST = Month(2025, 1)


def close(engine: Engine, month: Month, now: datetime = NOW, **options: Any) -> ClosedBooks:
    return close_month(
        engine, month, now=now, first_month=FIRST, closed_by="test", run_id="run", options=ClosingOptions(**options)
    )


def settle_and_close(engine: Engine, *months: Month) -> None:
    for month in months:
        settle(engine, month)
        close(engine, month)


def balances(engine: Engine, *columns: str, where: str = "true") -> list[tuple[Any, ...]]:
    """The balances in order of organization, currency and month; unless named: opening, net, due, payable, closing."""
    names = ", ".join(columns) or "opening, net, due, payable, closing"
    with engine.connect() as connection:
        rows = connection.execute(
            text(f"SELECT {names} FROM organization_balance WHERE {where} ORDER BY organization_id, currency, month")
        )
        return [tuple(row) for row in rows]


def state_of(engine: Engine, month: Month) -> str:
    with engine.connect() as connection:
        return str(
            connection.execute(
                text("SELECT state FROM settlement_period WHERE month = :month"), {"month": month.first_day}
            ).scalar_one()
        )


def set_minimum(engine: Engine, minimum: int, currency: str = "EUR") -> None:
    execute(engine, "UPDATE currency SET payout_minimum = :minimum WHERE code = :code", minimum=minimum, code=currency)


def add_payout(engine: Engine, organization: int, month: Month, state: str, currency: str = "EUR") -> None:
    """The payout of what the organization's closed balance says, in that state."""
    execute(
        engine,
        """
        INSERT INTO payout (organization_id, currency, month, amount, state, answered_at)
        SELECT organization_id, currency, month, payable, :state,
            CASE WHEN :state IN ('CONFIRMED', 'REJECTED', 'RETURNED') THEN clock_timestamp() END
        FROM organization_balance WHERE organization_id = :id AND currency = :currency AND month = :month
        """.replace(":state", "CAST(:state AS text)"),
        state=state, id=organization, currency=currency, month=month.first_day,
    )  # fmt: skip


def add_opening_balance(engine: Engine, organization: int, amount: int, currency: str = "EUR") -> None:
    execute(
        engine,
        "INSERT INTO opening_balance (organization_id, currency, amount) VALUES (:id, :currency, :amount)",
        id=organization, currency=currency, amount=amount,
    )  # fmt: skip


def breaches(engine: Engine) -> list[str]:
    """What any check has to say about the closed months, and about the months that are settled."""
    said = []
    with engine.connect() as connection:
        for month in closed_months(connection):
            for question in (invariants.broken_chain, invariants.changed_since_closing):
                said += [
                    f"{month} {one.organization} {one.currency} {one.what}"
                    for one in question(connection, month).examples
                ]
        for month in settled_months(connection):
            for ask in (settlement_audit.organizations_without_row, settlement_audit.dishonest_organizations):
                said += [f"{month} {one.organization} {one.what}" for one in ask(connection, month).examples]
    return said


FREE = {"commission_rate_bps": 0, "commission_tax_bps": 0}


def manual(engine: Engine, organization: int, amount: int, occurred_at: str, **values: object) -> int:
    return add_movement(engine, organization, amount, occurred_at, kind="MANUAL", reason="as agreed", **FREE | values)
