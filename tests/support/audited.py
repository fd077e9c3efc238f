"""A database through the whole chain, in which nothing is wrong, and what the audit says of one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from tests.support.books import APRIL, FEBRUARY, JANUARY, MARCH, add_opening_balance, close, settle_and_close
from tests.support.payable import request, rows
from tests.support.provider_by_hand import CONFIRMED, recorded, said
from tests.support.rows import add_movement, add_organization, add_void, instant
from tests.support.settled import settle
from tests.support.sql_statements import deliver
from tests.support.statements import state
from ticketflow_orch.auditing import INVARIANTS, Asked, Scope, Verdict, examine, snapshot
from ticketflow_orch.db.engine import transaction
from ticketflow_orch.months import Month
from ticketflow_orch.payouts import actions
from ticketflow_orch.settlement import IncompleteSettlementError

FIRST = Month(2026, 1)
FREE = {"commission_rate_bps": 0, "commission_tax_bps": 0}


def audit(engine: Engine, **asked: Any) -> dict[str, Verdict]:
    """All verdicts by the name of their invariant."""
    defaults = {"first_month": FIRST, "kept": timedelta(days=90)}
    with snapshot(engine) as connection:
        return {verdict.invariant.name: verdict for verdict in examine(connection, Asked(**defaults | asked))}


def broken(engine: Engine, **asked: Any) -> dict[str, list[str]]:
    """What breaks, by the name of the invariant: month, organization, currency and what."""
    return {name: said_of(verdict) for name, verdict in audit(engine, **asked).items() if verdict.is_broken}


def said_of(verdict: Verdict) -> list[str]:
    """The examples of a verdict as people read them, or why there is none."""
    lines = [
        " ".join(filter(None, (str(finding.month or ""), one.organization, one.currency, one.what)))
        for finding in verdict.findings
        for one in finding.examples
    ]
    return lines if verdict.no_answer is None else [verdict.no_answer]


def listed(engine: Engine, **asked: Any) -> dict[str, list[str]]:
    """What is listed although nothing is wrong with it."""
    found = audit(engine, **asked)
    return {one.name: said_of(found[one.name]) for one in INVARIANTS if one.scope == Scope.LISTED}


@dataclass(frozen=True, slots=True)
class World:
    """The organizations of `whole_chain`, by what became of them."""

    seller: int
    late: int
    poisoned: int


def whole_chain(engine: Engine, folder: Path) -> World:
    """January to March closed, paid and with statements, April settled; with all that may go otherwise and is in order.

    Late data for open and closed months and for one before the first, an organization that was parked and is not any
    more, a pass that was given up and one that is ahead of what counts as read, a refund, and a payout that came back.
    """
    seller = add_organization(engine, external_ref="seller", contact_email="finance@example.com")
    late = add_organization(engine, external_ref="late", timezone="Asia/Tokyo")
    poisoned = add_organization(engine, external_ref="poisoned")
    add_opening_balance(engine, late, -300, "USD")
    sale = add_movement(engine, seller, 100_001, "2026-01-10T10:00")
    add_movement(engine, late, 5_000, "2026-01-10T10:00", currency="JPY")
    settle(engine, JANUARY)
    add_movement(engine, late, 7_000, "2026-01-11T10:00", currency="JPY")
    settle_and_close(engine, JANUARY)
    request(engine, JANUARY)
    deliver(engine, "clock_timestamp()", "event_type = 'PayoutRequested'")
    recorded(engine, "DELIVERED", said({**CONFIRMED, "provider_ref": None}))
    state(engine, folder, JANUARY, mail_from=instant("2026-01-01T00:00"))
    _february(engine, seller, late, poisoned, sale)
    [(reference,)] = rows(
        engine, f"SELECT CAST(public_id AS text) FROM payout WHERE organization_id = {seller} AND month = '2026-01-01'"
    )
    with transaction(engine) as connection:
        actions.return_payout(connection, reference, "IBAN closed", "eva")
    add_movement(engine, late, 900, "2026-03-10T10:00", currency="JPY")
    settle_and_close(engine, MARCH)
    for month in (FEBRUARY, MARCH):
        request(engine, month)
    _april(engine, seller, late, poisoned)
    return World(seller, late, poisoned)


def _february(engine: Engine, seller: int, late: int, poisoned: int, sale: int) -> None:
    add_movement(engine, seller, -20_000, "2026-02-10T10:00", kind="REFUND", reverses_id=sale)
    add_movement(engine, seller, -500, "2026-02-11T10:00", kind="FEE", reason="terminal", **FREE)
    # What comes late for a closed month, and for one before the first.
    add_movement(engine, late, 4_000, "2026-01-12T10:00", currency="JPY")
    add_movement(engine, late, 3_000, "2025-12-12T10:00", currency="JPY")
    poison = [add_movement(engine, poisoned, 2**62, "2026-02-12T10:00") for _ in range(3)]
    with pytest.raises(IncompleteSettlementError):
        settle(engine, FEBRUARY, parked_limit=0, chunk_size=1, workers=1)
    assert len(settle(engine, FEBRUARY).parked) == 1
    for movement in poison:
        add_void(engine, movement)
    settle(engine, FEBRUARY)
    close(engine, FEBRUARY)


def _april(engine: Engine, seller: int, late: int, poisoned: int) -> None:
    """A pass of April that is ahead: what it posted for the sellers counts as read by nobody yet."""
    settle(engine, APRIL)
    add_movement(engine, seller, 8_000, "2026-04-10T10:00")
    add_movement(engine, late, 100, "2026-03-11T10:00", currency="JPY")
    for _ in range(3):
        add_movement(engine, poisoned, 2**62, "2026-04-12T10:00")
    with pytest.raises(IncompleteSettlementError):
        settle(engine, APRIL, parked_limit=0, workers=1)
