"""Currencies that are replaced: a theatre in Bulgaria, what it is owed, and what became of it."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine

from tests.support.books import (
    JANUARY,
    set_minimum,
    settle_and_close,
)
from tests.support.payable import rows
from tests.support.rows import add_movement, add_organization
from ticketflow_orch.closing.currency_replacement import Replaced, replace_currency
from ticketflow_orch.closing.currency_terms import Terms, Whose
from ticketflow_orch.months import Month

DECEMBER = JANUARY.previous()
FIRST = Month(2014, 10)
OFFICIAL = "1.95583"


def replace(engine: Engine, organization: str | None = "theatre", **options: str) -> Replaced:
    """The theatre's, or all organizations' BGN replaced by EUR from January on, unless said otherwise."""
    terms = {"from_month": "2026-01", "new": "EUR", "rate": OFFICIAL}
    every = options.pop("every", None)
    return replace_currency(engine, Whose.named(organization, every), Terms.parse(**terms | options), "ana")


def add_theatre(engine: Engine, **values: Any) -> int:
    return add_organization(
        engine, **{"external_ref": "theatre", "timezone": "Europe/Sofia", "currency": "BGN"} | values
    )


def carry_bgn(engine: Engine, amount: int = 3_000) -> int:
    """A theatre whose December is closed and carries what its one sale in BGN came to, below the minimum."""
    set_minimum(engine, 100_000, "BGN")
    theatre = add_theatre(engine)
    add_movement(engine, theatre, amount, "2025-12-20T10:00", currency="BGN")
    settle_and_close(engine, DECEMBER)
    return theatre


def conversions(engine: Engine) -> list[tuple[Any, ...]]:
    return rows(
        engine,
        """
        SELECT organization_id, currency, amount FROM money_movement WHERE kind = 'MANUAL' ORDER BY organization_id, id
        """,
    )
