"""What closed months pay, over months of sales, refunds and debts; some are mistakes that other systems made."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from tests.support.books import (
    APRIL,
    FEBRUARY,
    JANUARY,
    MARCH,
    add_payout,
    balances,
    breaches,
    close,
    set_minimum,
    settle_and_close,
    state_of,
)
from tests.support.rows import add_event, add_movement, add_organization, add_reservation, add_void
from tests.support.settled import KEPT, refund, settle
from tests.support.sql_statements import execute

MINIMUM = 5_000


@pytest.mark.every_server
@pytest.mark.parametrize(
    ("returned", "february", "march"),
    [({}, (0, -26_400, -26_400, 0, -26_400), (-26_400, 44_000, 17_600, 17_600, 0)),
     (KEPT, (0, -30_000, -30_000, 0, -30_000), (-30_000, 44_000, 14_000, 14_000, 0))],
    ids=["commission returned", "commission kept"],
)  # fmt: skip
def test_three_months_of_a_theatre_and_what_it_is_paid(
    engine: Engine, returned: dict[str, int], february: tuple[int, ...], march: tuple[int, ...]
) -> None:
    set_minimum(engine, MINIMUM)
    theatre = add_organization(engine)
    capture = add_movement(engine, theatre, 100_000, "2026-01-10T10:00")
    refund(engine, theatre, capture, 30_000, "2026-02-10T10:00", **returned)
    add_movement(engine, theatre, 50_000, "2026-03-10T10:00")
    settle_and_close(engine, JANUARY, FEBRUARY, MARCH)
    assert balances(engine, "opening", "net", "due", "payable", "closing") == [
        (0, 88_000, 88_000, 88_000, 0), february, march,
    ]  # fmt: skip
    for month in (JANUARY, FEBRUARY):
        assert settle(engine, month).settlement is None
        assert close(engine, month).found_closed
    assert len(balances(engine)) == 3
    assert breaches(engine) == []


def test_sums_that_were_once_too_small_to_pay_are_paid_when_they_are_large_enough(engine: Engine) -> None:
    # opencollective: the job read only the last month, so what was once below the minimum was never billed.
    set_minimum(engine, 500)
    organization = add_organization(engine)
    add_movement(engine, organization, 300, "2026-01-10T10:00", **KEPT)
    add_movement(engine, organization, 400, "2026-02-10T10:00", **KEPT)
    settle_and_close(engine, JANUARY, FEBRUARY, MARCH)
    assert balances(engine, "payable", "closing") == [(0, 300), (700, 0), (0, 0)]


def test_a_debt_in_one_currency_is_no_reason_to_pay_less_in_another(engine: Engine) -> None:
    # gumroad: a negative ledger masked by summing across accounts.
    organization = add_organization(engine)
    add_movement(engine, organization, -5_000, "2026-03-10T10:00", kind="MANUAL", reason="loan", **KEPT)
    add_movement(engine, organization, 8_000, "2026-03-10T10:00", currency="USD", **KEPT)
    settle_and_close(engine, MARCH)
    assert balances(engine, "currency", "payable", "closing") == [("EUR", 0, -5_000), ("USD", 8_000, 0)]


def test_a_refund_after_the_payout_is_worked_off_by_later_sales(engine: Engine) -> None:
    # balanced: a refund after payout drove the seller negative and no settlement could clear it.
    organization = add_organization(engine)
    capture = add_movement(engine, organization, 100_000, "2026-01-10T10:00")
    settle_and_close(engine, JANUARY)
    add_payout(engine, organization, JANUARY, "CONFIRMED")
    refund(engine, organization, capture, 30_000, "2026-02-10T10:00")
    settle_and_close(engine, FEBRUARY)
    add_movement(engine, organization, 50_000, "2026-03-10T10:00")
    settle_and_close(engine, MARCH)
    assert balances(engine, "payable", "closing") == [(88_000, 0), (0, -26_400), (17_600, 0)]


@pytest.mark.parametrize("kind", ["REFUND", "CHARGEBACK"])
@pytest.mark.parametrize("with_reservation", [True, False], ids=["of a reservation", "by hand"])
def test_money_given_back_lowers_what_is_paid_whoever_gave_it_back(
    engine: Engine, kind: str, with_reservation: bool
) -> None:
    # dokan: an admin's refund did not lower what the vendor could withdraw.
    organization = add_organization(engine)
    reservation = add_reservation(engine, add_event(engine, organization)) if with_reservation else None
    capture = add_movement(engine, organization, 10_000, "2026-03-10T10:00", reservation_id=reservation, **KEPT)
    add_movement(
        engine, organization, -4_000, "2026-03-11T10:00", kind=kind, reverses_id=capture, reservation_id=reservation,
        **KEPT,
    )  # fmt: skip
    settle_and_close(engine, MARCH)
    assert balances(engine, "payable") == [(6_000,)]


def test_a_refund_of_an_earlier_month_reaches_the_next_books_and_leaves_closed_ones_to_the_byte(engine: Engine) -> None:
    # bn-api: settlements took only events that ended in their window, later refunds reached none.
    organization = add_organization(engine)
    capture = add_movement(engine, organization, 100_000, "2026-01-10T10:00")
    settle_and_close(engine, JANUARY)
    january = balances(engine, "organization_balance")
    refund(engine, organization, capture, 30_000, "2026-03-05T10:00")
    settle_and_close(engine, FEBRUARY, MARCH)
    assert balances(engine, "organization_balance")[:1] == january
    assert balances(engine, "net") == [(88_000,), (0,), (-26_400,)]


def test_what_is_shown_as_due_can_be_paid_to_the_cent(engine: Engine) -> None:
    # dokan: the shown sum was rounded up, and withdrawing it was refused.
    organization = add_organization(engine)
    for amount in (333, 333, 335):
        add_movement(engine, organization, amount, "2026-03-10T10:00")
    settle_and_close(engine, MARCH)
    [(net, due, payable)] = balances(engine, "net", "due", "payable")
    assert net == due == payable == 1001 - 100 - 20
    add_payout(engine, organization, MARCH, "CONFIRMED")


def test_a_month_of_nothing_has_a_balance_of_nothing(engine: Engine) -> None:
    # Lago makes it a switch, OES wrote nothing and its window silently grew.
    organization = add_organization(engine)
    capture = add_movement(engine, organization, 10_000, "2026-03-10T10:00")
    refund(engine, organization, capture, 10_000, "2026-03-11T10:00")
    add_organization(engine)
    settle_and_close(engine, MARCH)
    assert balances(engine) == [(0, 0, 0, 0, 0)] * 2


def test_a_month_that_is_settled_and_not_closed_pays_nobody(engine: Engine) -> None:
    # bn-api: finance asked that what is not final is not taken for it.
    organization = add_organization(engine)
    add_movement(engine, organization, 10_000, "2026-03-10T10:00")
    settle(engine)
    assert state_of(engine, MARCH) == "SETTLED"
    assert balances(engine) == []


def test_whoever_fails_is_left_out_and_everybody_else_is_paid(engine: Engine) -> None:
    # killbill: park the account, bill the others, unpark when a run succeeds.
    good, bad = add_organization(engine), add_organization(engine)
    add_movement(engine, good, 10_000, "2026-03-10T10:00", **KEPT)
    poison = [add_movement(engine, bad, 2**62, "2026-03-10T10:00", **KEPT) for _ in range(2)]
    settle(engine)
    result = close(engine, MARCH)
    assert balances(engine, "organization_id", "payable") == [(good, 10_000)]
    assert len(result.parked) == 1
    assert breaches(engine) == []
    add_void(engine, poison[0])
    settle(engine, APRIL)
    close(engine, APRIL)
    assert balances(engine, "month", "previous_month", "payable", where=f"organization_id = {bad}") == [
        (APRIL.first_day, None, 2**62)
    ]


def test_a_minimum_that_changes_later_does_not_reach_back(engine: Engine) -> None:
    organization = add_organization(engine)
    add_movement(engine, organization, 300, "2026-01-10T10:00", **KEPT)
    settle_and_close(engine, JANUARY)
    execute(engine, "UPDATE currency SET payout_minimum = 1000 WHERE code = 'EUR'")
    add_movement(engine, organization, 300, "2026-02-10T10:00", **KEPT)
    settle_and_close(engine, FEBRUARY)
    assert balances(engine, "payable", "closing") == [(300, 0), (0, 300)]
    assert breaches(engine) == []
