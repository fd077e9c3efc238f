"""The review bound: a month far above the last ones waits for a person, who is alerted once."""

from __future__ import annotations

from decimal import Decimal

import pytest
from sqlalchemy import Engine

from tests.support.payable import MARCH, close_with, owing, request, request_and_die, rows
from tests.support.rows import add_organization
from tests.support.sql_statements import execute
from ticketflow_orch.months import Month, months_between
from ticketflow_orch.payouts.actions import Selection, release

APRIL = MARCH.next()


def pay(engine: Engine, *totals: int) -> None:
    """Months up to March, of which each pays one organization so much."""
    first = MARCH
    for _ in totals[1:]:
        first = first.previous()
    for month, total in zip(months_between(first, MARCH), totals, strict=True):
        owing(engine, total, month)
        request(engine, month)


def states(engine: Engine, month: Month = APRIL) -> list[str]:
    return [state for (state,) in rows(engine, "SELECT state FROM payout WHERE month = :m", m=month.first_day)]


@pytest.mark.parametrize(("april", "held"), [(3_000, False), (3_001, True)])
def test_a_month_above_three_times_the_greatest_of_the_last_three_is_held(
    engine: Engine, april: int, held: bool
) -> None:
    # Four months ago is too long ago, and the mean would say 767.
    pay(engine, 9_000, 700, 1_000, 600)
    owing(engine, april, APRIL)
    result = request(engine, APRIL)
    assert (result.held, states(engine)) == ((1, ["HELD"]) if held else (0, ["REQUESTED"]))
    reasons = rows(engine, "SELECT reason FROM payout WHERE month = '2026-04-01'")
    assert reasons == [("review: 30.01 EUR in 2026-04 after at most 10.00 a month" if held else None,)]
    assert [one.held for one in result.currencies] == [reason for (reason,) in reasons]


@pytest.mark.every_server
def test_currencies_are_reviewed_one_by_one(engine: Engine) -> None:
    organization = add_organization(engine)
    close_with(engine, [(organization, "EUR", 100), (organization, "JPY", 100)])
    request(engine)
    close_with(engine, [(organization, "EUR", 301), (organization, "JPY", 300), (organization, "USD", 10**9)], APRIL)
    result = request(engine, APRIL)
    assert [(one.currency, one.held is not None) for one in result.currencies] == [
        ("EUR", True),
        ("JPY", False),
        ("USD", False),
    ]


def test_the_factor_is_a_setting(engine: Engine) -> None:
    pay(engine, 100)
    owing(engine, 151, APRIL)
    assert request(engine, APRIL, review_factor=Decimal("1.5")).held == 1


@pytest.mark.parametrize("first", [False, True])
def test_whether_the_first_payouts_of_a_currency_wait_is_a_setting(engine: Engine, first: bool) -> None:
    owing(engine, 10**9)
    assert request(engine, review_first=first).held == int(first)


def test_a_hold_is_told_once_however_often_it_is_looked_at(engine: Engine) -> None:
    pay(engine, 100)
    owing(engine, 1_000, APRIL)
    for _ in range(3):
        request(engine, APRIL)
    [(key, payload)] = rows(
        engine, "SELECT dedupe_key, payload FROM outbox_event WHERE event_type = 'PayoutsHeldForReview'"
    )
    assert key == "PayoutsHeldForReview 2026-04 EUR"
    assert payload == {
        "month": "2026-04",
        "currency": "EUR",
        "payouts": 1,
        "amount": 1_000,
        "greatest": 100,
        "reason": "review: 10.00 EUR in 2026-04 after at most 1.00 a month",
        "severity": "ticket",
        "subject": "2026-04 EUR",
    }


def test_what_was_held_half_way_is_held_to_its_end_whatever_was_released_meanwhile(engine: Engine) -> None:
    pay(engine, 100)
    first, second = add_organization(engine), add_organization(engine)
    close_with(engine, [(first, "EUR", 500), (second, "EUR", 500)], APRIL)
    request_and_die(engine, APRIL, after_chunks=1, chunk_size=1)
    assert states(engine) == ["HELD"]
    execute(engine, "UPDATE payout SET state = 'REJECTED', answered_at = now() WHERE month = '2026-03-01'")
    request(engine, APRIL)
    assert states(engine) == ["HELD", "HELD"]


def test_held_and_rejected_payouts_are_no_measure(engine: Engine) -> None:
    pay(engine, 100)
    owing(engine, 10_000, APRIL)
    request(engine, APRIL)
    owing(engine, 400, APRIL.next())
    assert request(engine, APRIL.next()).held == 1
    release(engine, Selection(APRIL), "eva")
    owing(engine, 30_000, APRIL.next().next())
    assert request(engine, APRIL.next().next()).held == 0
