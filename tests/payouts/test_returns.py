"""Money that did not arrive comes back in the next month that is closed, once, and is paid again with it."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine

from tests.support.books import APRIL, FEBRUARY, JANUARY, MARCH, balances, set_minimum, settle_and_close
from tests.support.payable import request, rows
from tests.support.provider_by_hand import CONFIRMED, REJECTED, recorded, said
from tests.support.rows import add_movement, add_organization
from tests.support.sql_statements import deliver
from ticketflow_orch.db.engine import transaction
from ticketflow_orch.payouts import actions
from ticketflow_orch.payouts.invariants import not_as_payable


def paid(engine: Engine) -> list[tuple[Any, ...]]:
    return rows(engine, "SELECT to_char(month, 'YYYY-MM'), amount, state FROM payout ORDER BY month")


def breaches(engine: Engine) -> int:
    with engine.connect() as connection:
        return sum(finding.count for finding in not_as_payable(connection))


def test_the_golden_quarter_pays_in_january_and_march(engine: Engine) -> None:
    set_minimum(engine, 5_000)
    organization = add_organization(engine)
    sale = add_movement(engine, organization, 100_000, "2026-01-10T10:00")
    add_movement(engine, organization, -30_000, "2026-02-10T10:00", kind="REFUND", reverses_id=sale)
    add_movement(engine, organization, 50_000, "2026-03-10T10:00")
    settle_and_close(engine, JANUARY, FEBRUARY, MARCH)
    for month in (JANUARY, FEBRUARY, MARCH):
        request(engine, month)
    assert paid(engine) == [("2026-01", 88_000, "REQUESTED"), ("2026-03", 17_600, "REQUESTED")]
    assert breaches(engine) == 0


@pytest.mark.every_server
@pytest.mark.parametrize("returned", [False, True], ids=["rejected", "returned"])
def test_a_payout_that_did_not_arrive_is_paid_with_the_next_month(engine: Engine, returned: bool) -> None:
    organization = add_organization(engine)
    add_movement(engine, organization, 100_000, "2026-01-10T10:00")
    add_movement(engine, organization, 10_000, "2026-03-10T10:00")
    settle_and_close(engine, JANUARY)
    request(engine, JANUARY)
    recorded(engine, "DELIVERED", said(CONFIRMED if returned else REJECTED))
    if returned:
        [(reference,)] = rows(engine, "SELECT CAST(public_id AS text) FROM payout")
        settle_and_close(engine, FEBRUARY)
        with transaction(engine) as connection:
            actions.return_payout(connection, reference, "IBAN closed", "eva")
    else:
        settle_and_close(engine, FEBRUARY)
    settle_and_close(engine, MARCH, APRIL)
    for month in (FEBRUARY, MARCH, APRIL):
        request(engine, month)
    back = MARCH if returned else FEBRUARY
    assert rows(engine, "SELECT to_char(returned_month, 'YYYY-MM') FROM payout WHERE month = '2026-01-01'") == [
        (str(back),)
    ]
    assert balances(engine, "returned") == [(88_000 * (month == back),) for month in (JANUARY, FEBRUARY, MARCH, APRIL)]
    assert sum(amount for _, amount, state in paid(engine) if state == "REQUESTED") == 88_000 + 8_800
    assert breaches(engine) == 0


def test_a_doubt_returns_nothing_until_it_is_settled(engine: Engine) -> None:
    organization = add_organization(engine)
    add_movement(engine, organization, 100_000, "2026-01-10T10:00")
    settle_and_close(engine, JANUARY)
    request(engine, JANUARY)
    deliver(engine, "now()", "event_type = 'PayoutRequested'")
    recorded(engine, "DELIVERED", said({"status": "taken"}))
    settle_and_close(engine, FEBRUARY)
    assert balances(engine, "returned") == [(0,), (0,)]
    [(reference,)] = rows(engine, "SELECT CAST(public_id AS text) FROM payout")
    with transaction(engine) as connection:
        connection.exec_driver_sql(
            "UPDATE outbox_event SET state = 'HELD', available_at = NULL WHERE state = 'PENDING'"
        )
        actions.reject(connection, reference, "no trace of it", "eva")
    settle_and_close(engine, MARCH)
    assert balances(engine, "returned") == [(0,), (0,), (88_000,)]
