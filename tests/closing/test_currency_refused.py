"""When a currency is not replaced, and why, in one sentence."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from tests.support.books import (
    FEBRUARY,
    JANUARY,
    add_opening_balance,
    add_payout,
)
from tests.support.payable import pay_from, rows
from tests.support.replaced import DECEMBER, add_theatre, carry_bgn, conversions, replace
from tests.support.rows import add_organization
from tests.support.settled import settle
from tests.support.sql_statements import begin_pass, execute, refusal
from ticketflow_orch.closing.currency_terms import Terms
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.months import Month


@pytest.mark.parametrize("rate", ["0", "0.000", "-1", "inf", "nan", "1e3", "1,95583", "", " 2", "١", "9" * 19])
def test_a_rate_that_is_none_is_refused(rate: str) -> None:
    with pytest.raises(TicketflowError, match=r"is no rate; write how many of the old currency are one of the new one"):
        Terms.parse("2026-01", "EUR", rate)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"new": "QQQ"}, "Currency 'QQQ' is unknown"),
        ({"new": "EURO"}, "'EURO' is no currency"),
        ({"new": "BGN"}, "BGN is the currency in 2025-12 already"),
        ({"new": "HRK"}, "HRK is not in use any more in 2026-01: its last day was 2023-01-14"),
        ({"from_month": "2026-13"}, "'2026-13' is not a month"),
        (
            {"from_month": "2025-12"},
            "2025-12 is closed, so its currency stays; the first month from which another one can",
        ),
        ({"organization": "nobody"}, "There is no organization 'nobody'"),
        ({"organization": "seller"}, "EUR is the currency in 2025-12 already"),
        ({"organization": None}, "Name one organization, or all that have a currency"),
        ({"every": "BGN"}, "Name one organization, or all that have a currency"),
        ({"organization": None, "every": "HRK"}, "No organization has HRK as its currency in 2025-12"),
        ({"organization": "huge"}, "Organization 'huge' is not converted: at this rate it would be owed more than"),
        ({"organization": "paid"}, "Organization 'paid' is not converted: payout .* of 2025-12 is REQUESTED"),
    ],
)
def test_what_cannot_be_replaced_is_one_sentence_and_nothing_is_written(
    engine: Engine, asked: dict[str, str], sentence: str
) -> None:
    add_organization(engine, external_ref="seller")
    paid = add_theatre(engine, external_ref="paid")
    add_opening_balance(engine, paid, 1_000_000, "BGN")
    carry_bgn(engine)
    add_payout(engine, paid, DECEMBER, "REQUESTED", "BGN")
    add_opening_balance(engine, add_theatre(engine, external_ref="huge"), 2**62, "BGN")
    rate = {"rate": "0.1"} if asked.get("organization") == "huge" else {}
    with pytest.raises(TicketflowError, match=sentence):
        replace(engine, **asked | rate)
    assert (conversions(engine), rows(engine, "SELECT * FROM organization_currency")) == ([], [])


def test_a_month_that_is_being_settled_keeps_its_currency(engine: Engine) -> None:
    add_theatre(engine)
    begin_pass(engine, "2026-02-01")
    with pytest.raises(
        TicketflowError, match=r"2026-02 is being settled, so its currency stays.* can be in force is 2026-03"
    ):
        replace(engine)
    assert replace(engine, from_month="2026-03").decided == 1


def test_a_month_that_is_being_closed_converts_nothing(engine: Engine) -> None:
    carry_bgn(engine)
    settle(engine, JANUARY)
    execute(engine, "UPDATE settlement_period SET state = 'CLOSING' WHERE month = '2026-01-01'")
    with pytest.raises(TicketflowError, match="2026-01 is being closed; try again when it is"):
        replace(engine, from_month="2026-02")


def test_nothing_is_converted_in_a_month_that_is_settled_elsewhere(engine: Engine) -> None:
    carry_bgn(engine)
    pay_from(engine, Month(2026, 3))
    replaced = replace(engine)
    assert (replaced.decided, replaced.converted) == (1, 0)
    assert "2026-01 is before 2026-03, the first month that is paid here" in replaced.why_not_yet


def test_nothing_is_converted_for_whom_the_month_is_settled_elsewhere(engine: Engine) -> None:
    theatre = carry_bgn(engine)
    pay_from(engine, Month(2026, 3), theatre)
    with pytest.raises(TicketflowError, match="it is paid from 2026-03 on, and what is dated before counts as settled"):
        replace(engine)
    assert conversions(engine) == []


@pytest.mark.every_server
def test_the_database_keeps_decisions_and_takes_none_about_months_that_are_settled(engine: Engine) -> None:
    theatre = add_theatre(engine)
    replace(engine, from_month="2026-02")
    settle(engine, FEBRUARY)
    for statement in (
        "UPDATE organization_currency SET currency = 'USD'",
        "DELETE FROM organization_currency",
        "TRUNCATE organization_currency",
    ):
        assert "organization_currency is append-only" in refusal(engine, statement)
    decision = "INSERT INTO organization_currency (organization_id, from_month, currency, decided_by)"
    for month in ("2026-01-01", "2026-02-01"):
        said = refusal(engine, f"{decision} VALUES ({theatre}, '{month}', 'USD', 'eva')")
        assert said.splitlines()[0] == f"no currency changes from {month[:7]} on, because 2026-02 is settled"
