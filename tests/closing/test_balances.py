"""What balances say: openings, nets, what is paid and carried; and those that cannot be written."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from tests.support.books import (
    APRIL,
    FEBRUARY,
    JANUARY,
    MARCH,
    add_opening_balance,
    add_payout,
    balances,
    breaches,
    close,
    manual,
    set_minimum,
    settle_and_close,
    state_of,
)
from tests.support.rows import add_organization, instant
from tests.support.settled import ledger, settle
from tests.support.sql_statements import execute, refusal
from ticketflow_orch.closing import IncompleteClosingError
from ticketflow_orch.months import Month


@pytest.mark.every_server
def test_a_balance_opens_with_what_the_one_before_left_and_pays_what_is_due(engine: Engine) -> None:
    organization = add_organization(engine)
    manual(engine, organization, 700, "2026-01-10T10:00")
    manual(engine, organization, -100, "2026-02-10T10:00")
    manual(engine, organization, 30, "2026-03-10T10:00")
    manual(engine, organization, 80, "2026-04-10T10:00")
    settle_and_close(engine, JANUARY, FEBRUARY, MARCH, APRIL)
    assert balances(engine) == [
        (0, 700, 700, 700, 0),
        (0, -100, -100, 0, -100),
        (-100, 30, -70, 0, -70),
        (-70, 80, 10, 10, 0),
    ]
    assert balances(engine, "previous_month") == [
        (None,), (JANUARY.first_day,), (FEBRUARY.first_day,), (MARCH.first_day,),
    ]  # fmt: skip
    assert breaches(engine) == []


@pytest.mark.parametrize(
    ("minimum", "due", "payable"), [(0, 0, 0), (0, 1, 1), (5000, 4999, 0), (5000, 5000, 5000), (5000, -1, 0)]
)
def test_what_is_due_is_paid_from_the_currency_s_minimum_on(
    engine: Engine, minimum: int, due: int, payable: int
) -> None:
    set_minimum(engine, minimum)
    organization = add_organization(engine)
    if due:
        manual(engine, organization, due, "2026-03-10T10:00")
    settle_and_close(engine, MARCH)
    assert balances(engine) == [(0, due, due, payable, due - payable)]


def test_each_currency_has_its_own_chain(engine: Engine) -> None:
    organization = add_organization(engine)
    set_minimum(engine, 1000, "USD")
    manual(engine, organization, -50, "2026-02-10T10:00")
    manual(engine, organization, 600, "2026-02-10T10:00", currency="USD")
    manual(engine, organization, 600, "2026-03-10T10:00", currency="USD")
    settle_and_close(engine, FEBRUARY, MARCH)
    assert balances(engine, "currency", "opening", "payable", "closing") == [
        ("EUR", 0, 0, -50), ("EUR", -50, 0, -50), ("USD", 0, 0, 600), ("USD", 600, 1200, 0),
    ]  # fmt: skip


def test_what_is_carried_is_a_row_in_months_without_movements_and_ends_with_a_payout(engine: Engine) -> None:
    organization = add_organization(engine, left_on=instant("2026-02-01").date())
    manual(engine, organization, -50, "2026-01-10T10:00", currency="USD")
    manual(engine, organization, 50, "2026-03-10T10:00", currency="USD")
    settle_and_close(engine, JANUARY, FEBRUARY, MARCH, APRIL)
    assert [row for row in ledger(engine, "month", "currency", "net") if row[1] == "USD"] == [
        (JANUARY.first_day, "USD", -50), (MARCH.first_day, "USD", 50),
    ]  # fmt: skip
    usd = "currency = 'USD'"
    assert balances(engine, "month", "opening", "net", "closing", where=usd) == [
        (JANUARY.first_day, 0, -50, -50), (FEBRUARY.first_day, -50, 0, -50), (MARCH.first_day, -50, 50, 0),
    ]  # fmt: skip
    manual(engine, organization, 5, "2026-05-10T10:00", currency="USD")
    settle_and_close(engine, Month(2026, 5))
    assert balances(engine, "previous_month", "opening", "payable", where=f"{usd} AND month = '2026-05-01'") == [
        (MARCH.first_day, 0, 5)
    ]
    assert breaches(engine) == []


def test_an_opening_balance_is_what_a_chain_begins_with_and_counts_once(engine: Engine) -> None:
    debtor, creditor = add_organization(engine), add_organization(engine)
    add_opening_balance(engine, debtor, -700)
    add_opening_balance(engine, creditor, 300, "USD")
    manual(engine, debtor, 100, "2026-01-10T10:00")
    settle_and_close(engine, JANUARY, FEBRUARY)
    assert balances(engine, "currency", "opening", "due", "closing", where=f"organization_id = {debtor}") == [
        ("EUR", -700, -600, -600), ("EUR", -600, -600, -600),
    ]  # fmt: skip
    assert balances(engine, "opening", "payable", "closing", where="currency = 'USD'") == [(300, 300, 0)]
    assert breaches(engine) == []
    assert "never changes" in refusal(engine, "UPDATE opening_balance SET amount = 1")
    assert "stays" in refusal(engine, "DELETE FROM opening_balance")


@pytest.mark.parametrize("state", ["REJECTED", "RETURNED"])
def test_a_payout_that_failed_comes_back_once_in_the_first_month_that_is_not_closed(engine: Engine, state: str) -> None:
    organization = add_organization(engine)
    manual(engine, organization, 700, "2026-01-10T10:00")
    settle_and_close(engine, JANUARY, FEBRUARY)
    add_payout(engine, organization, JANUARY, state)
    manual(engine, organization, -50, "2026-03-10T10:00")
    settle_and_close(engine, MARCH, APRIL)
    assert balances(engine, "net", "returned", "due", "payable") == [
        (700, 0, 700, 700), (0, 0, 0, 0), (-50, 700, 650, 650), (0, 0, 0, 0),
    ]  # fmt: skip
    assert breaches(engine) == []
    execute(engine, "UPDATE payout SET reason = 'looked at again'")
    assert "returns once" in refusal(engine, "UPDATE payout SET returned_month = '2026-04-01'")


@pytest.mark.parametrize("state", ["HELD", "REQUESTED", "CONFIRMED", "IN_DOUBT"])
def test_a_payout_that_may_have_left_does_not_come_back(engine: Engine, state: str) -> None:
    organization = add_organization(engine)
    manual(engine, organization, 700, "2026-01-10T10:00")
    settle_and_close(engine, JANUARY)
    add_payout(engine, organization, JANUARY, state)
    settle_and_close(engine, FEBRUARY)
    assert balances(engine, "returned", where="month = '2026-02-01'") == [(0,)]


def test_what_came_late_is_in_the_balance_of_the_month_that_took_it_in(engine: Engine) -> None:
    organization = add_organization(engine)
    manual(engine, organization, 700, "2026-01-10T10:00")
    settle_and_close(engine, JANUARY)
    january = balances(engine, "organization_balance")
    manual(engine, organization, -60, "2026-01-11T10:00")
    manual(engine, organization, 5, "2025-11-11T10:00")
    settle_and_close(engine, FEBRUARY)
    assert balances(engine, "organization_balance")[:1] == january
    assert balances(engine)[1] == (0, -55, -55, 0, -55)
    assert breaches(engine) == []


def test_a_balance_that_no_column_can_hold_parks_its_organization_alone(engine: Engine) -> None:
    organizations = [add_organization(engine, external_ref=f"theatre {number}") for number in range(9)]
    for organization in organizations:
        manual(engine, organization, -(2**62) if organization == organizations[6] else -5, "2026-01-10T10:00")
    settle_and_close(engine, JANUARY)
    for organization in organizations:
        manual(engine, organization, -(2**62) - 1 if organization == organizations[6] else -5, "2026-02-10T10:00")
    settle(engine, FEBRUARY)
    result = close(engine, FEBRUARY, chunk_size=4)
    assert result.rows_new == 8
    assert [parked.external_ref for parked in result.parked] == ["theatre 6"]
    assert "its balance: bigint out of range" in result.parked[0].why
    assert breaches(engine) == []
    manual(engine, organizations[6], 2**61, "2026-03-10T10:00")
    assert settle(engine, MARCH).parked == ()
    close(engine, MARCH)
    sixth = f"organization_id = {organizations[6]}"
    assert balances(engine, "month", "previous_month", "opening", "net", where=sixth)[1:] == [
        (MARCH.first_day, JANUARY.first_day, -(2**62), -(2**62) - 1 + 2**61)
    ]
    assert breaches(engine) == []


def test_more_failing_balances_than_may_be_parked_leave_the_month_to_be_closed_again(engine: Engine) -> None:
    for number in range(3):
        organization = add_organization(engine, external_ref=f"theatre {number}")
        manual(engine, organization, 2**62, "2026-01-10T10:00")
        add_opening_balance(engine, organization, 2**62)
    add_organization(engine)
    settle(engine, JANUARY)
    with pytest.raises(IncompleteClosingError, match=r"of 2 organizations in 2026-01 .* of theatre 2 .*PARKED_LIMIT"):
        close(engine, JANUARY, parked_limit=2)
    assert state_of(engine, JANUARY) == "CLOSING"
    result = close(engine, JANUARY, parked_limit=3)
    assert (result.resumed, result.rows_new, len(result.parked)) == (True, 1, 3)
    assert breaches(engine) == []
