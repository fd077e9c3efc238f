"""Closed months that owe money, made in a line each: what the closing of the books would have written."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from sqlalchemy import Engine, event, text

from tests.support.rows import add_organization, instant
from tests.support.sql_statements import execute
from ticketflow_orch.months import Month
from ticketflow_orch.outbox.delivery import Message
from ticketflow_orch.payouts import PayoutRules, PayoutsRequested, request_payouts
from ticketflow_orch.payouts.paid_from import judged

MARCH = Month(2026, 3)
NOW = instant("2026-04-03T06:30")


def close_owing(engine: Engine, owed: dict[int, int], month: Month = MARCH, currency: str = "EUR") -> None:
    """Close `month` with balances that owe each organization of `owed` its amount (minor units) in `currency`."""
    close_with(engine, [(organization, currency, amount) for organization, amount in owed.items()], month)


def close_with(engine: Engine, owed: list[tuple[int, str, int]], month: Month = MARCH) -> None:
    """Close `month` with balances of (organization, currency, due); what is not above zero is carried."""
    day = {"month": month.first_day}
    execute(engine, "INSERT INTO settlement_period (month) VALUES (:month)", **day)
    execute(
        engine,
        "UPDATE settlement_period SET state = 'SETTLED', settled_at = now(), settled_by = 'test' WHERE month = :month",
        **day,
    )
    execute(engine, "UPDATE settlement_period SET state = 'CLOSING' WHERE month = :month", **day)
    with engine.begin() as connection:
        for organization, currency, due in owed:
            connection.execute(
                text("""
                    INSERT INTO organization_balance (organization_id, currency, month, opening, net, returned, due,
                        payable, closing)
                    VALUES (:organization, :currency, :month, 0, CAST(:due AS bigint), 0, CAST(:due AS bigint),
                        greatest(CAST(:due AS bigint), 0), least(CAST(:due AS bigint), 0))
                """),
                {"organization": organization, "currency": currency, "due": due, **day},
            )
    execute(
        engine,
        """
        UPDATE settlement_period SET state = 'CLOSED', closed_at = now(), closed_by = 'test', closed_role = current_user
        WHERE month = :month
        """,
        **day,
    )


def request(engine: Engine, month: Month = MARCH, **rules: Any) -> PayoutsRequested:
    """Request the payouts of `month`."""
    return request_payouts(engine, month, PayoutRules(**{"now": NOW} | rules), "run")


def pay_from(engine: Engine, month: Month | None, organization: int | None = None) -> None:
    """Pay from `month` on, as if it had always been so; None: payouts are off. Or one organization from its own."""
    values = {"day": None if month is None else month.first_day, "id": organization}
    with engine.begin() as connection:
        judged(connection, "test")
        if organization is None:
            row = "UPDATE installation SET payouts_from = CAST(:day AS date), changed_by = 'test'"
        else:
            row = "UPDATE organization SET payouts_from = CAST(:day AS date) WHERE id = :id"
        connection.execute(text(row), values)


def request_and_die(engine: Engine, month: Month = MARCH, *, after_chunks: int, **rules: Any) -> None:
    """As `request`, by a process that ends after so many chunks."""
    chunks = itertools.count()

    def die(*arguments: Any) -> None:
        if "INSERT INTO payout" in arguments[2] and next(chunks) == after_chunks:
            raise KeyboardInterrupt

    event.listen(engine, "before_cursor_execute", die)
    with pytest.raises(KeyboardInterrupt):
        request(engine, month, **rules)
    event.remove(engine, "before_cursor_execute", die)


def owing(engine: Engine, amount: int = 88_000, month: Month = MARCH, **values: Any) -> int:
    """An organization that is owed `amount` for `month`, which is closed."""
    organization = add_organization(engine, **values)
    close_owing(engine, {organization: amount}, month)
    return organization


def requested_payout(engine: Engine, amount: int = 88_000) -> str:
    """The reference of a payout of March that has been requested."""
    owing(engine, amount)
    request(engine)
    with engine.connect() as connection:
        return str(connection.execute(text("SELECT public_id FROM payout")).scalar_one())


def rows(engine: Engine, query: str, **parameters: Any) -> list[tuple[Any, ...]]:
    """The rows of a query."""
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text(query), parameters)]


def messages_of(engine: Engine) -> list[Message]:
    """The events of the outbox that ask for payouts, at their last attempt."""
    with engine.connect() as connection:
        found = connection.execute(text("SELECT * FROM outbox_event WHERE event_type = 'PayoutRequested' ORDER BY id"))
        return [
            Message(
                row.event_id,
                row.event_type,
                row.aggregate_type,
                row.aggregate_id,
                json.dumps(row.payload),
                row.occurred_at,
                None,
                row.attempts,
            )
            for row in found
        ]
