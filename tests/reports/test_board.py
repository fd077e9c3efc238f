"""The board of months: what it says of each month, and that saying it stays cheap."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import Engine, event

from tests.support.books import FEBRUARY, FIRST, JANUARY, MARCH, add_payout, close, settle_and_close
from tests.support.payable import pay_from, request
from tests.support.rows import add_movement, add_organization, instant
from tests.support.settled import settle
from tests.support.sql_statements import execute
from ticketflow_orch.months import Month
from ticketflow_orch.payouts.pause import pause
from ticketflow_orch.reports.board import MONTHS_SHOWN, Board, BoardMonth, Stage, WaitingPayouts, read_board
from ticketflow_orch.settlement import IncompleteSettlementError

# March is over, April is not.
APRIL_15 = instant("2026-04-15T12:00")


def board(engine: Engine, now: datetime = APRIL_15) -> Board:
    with engine.connect() as connection:
        return read_board(connection, now, FIRST)


def month_of(engine: Engine, month: Month, **options: Any) -> BoardMonth:
    return next(one for one in board(engine, **options).months if one.month == month)


def sell(engine: Engine, organization: int, *months: Month, amount: int = 100_000) -> None:
    for month in months:
        add_movement(engine, organization, amount, f"{month}-10T10:00")


@pytest.fixture
def organization(engine: Engine) -> int:
    """An organization that sold in each of the first three months of 2026."""
    organization = add_organization(engine)
    sell(engine, organization, JANUARY, FEBRUARY, MARCH)
    return organization


@pytest.mark.every_server
def test_the_months_that_are_over_are_shown_in_order_with_their_states(engine: Engine, organization: int) -> None:
    settle_and_close(engine, JANUARY)
    settle(engine, FEBRUARY)
    shown = board(engine).months
    assert [(str(one.month), one.state) for one in shown] == [
        ("2026-01", "CLOSED"),
        ("2026-02", "SETTLED"),
        ("2026-03", "OPEN"),
    ]
    assert [one.settled for one in shown] == [Stage.DONE, Stage.DONE, Stage.NOT_YET]
    assert [one.closed for one in shown] == [Stage.DONE, Stage.NOT_YET, Stage.NOT_YET]


def test_nothing_is_shown_before_anybody_has_sold_anything(engine: Engine) -> None:
    add_organization(engine)
    assert board(engine).months == ()


def test_an_organization_in_an_unknown_zone_hides_no_month_that_is_settled(engine: Engine, organization: int) -> None:
    sell(engine, organization, JANUARY)
    settle(engine, JANUARY)
    add_organization(engine, timezone="Mars/Olympus")
    shown = board(engine)
    assert shown.months[0].month == JANUARY


def test_of_a_long_history_the_last_three_years_are_shown(engine: Engine, organization: int) -> None:
    for number in range(MONTHS_SHOWN + 4):
        settle(engine, Month(2022 + number // 12, number % 12 + 1))
    shown = board(engine, now=instant("2025-05-15T12:00")).months
    assert (len(shown), str(shown[0].month), str(shown[-1].month)) == (MONTHS_SHOWN, "2022-05", "2025-04")


def test_what_was_posted_is_shown_by_currency(engine: Engine, organization: int) -> None:
    add_movement(engine, organization, 5_000, "2026-01-20T10:00", currency="JPY")
    settle(engine, JANUARY)
    january = month_of(engine, JANUARY)
    assert [(total.currency, total.net, total.exponent) for total in january.totals] == [
        ("EUR", 88_000, 2),
        ("JPY", 4_400, 0),
    ]
    assert january.organizations == 2


def test_adjustments_count_for_the_month_that_they_are_about_wherever_they_are_posted(
    engine: Engine, organization: int
) -> None:
    settle(engine, JANUARY)
    sell(engine, organization, JANUARY)
    settle(engine, JANUARY)
    close(engine, JANUARY)
    sell(engine, organization, JANUARY)
    settle(engine, FEBRUARY)
    assert [one.late for one in board(engine).months] == [2, 0, 0]


def test_money_in_a_currency_that_is_new_to_a_closed_month_is_late_too(engine: Engine, organization: int) -> None:
    settle_and_close(engine, JANUARY)
    add_movement(engine, organization, 5_000, "2026-01-20T10:00", currency="JPY")
    settle(engine, FEBRUARY)
    assert [one.late for one in board(engine).months] == [1, 0, 0]


def test_who_failed_is_parked_in_that_month_and_who_is_parked_by_hand_in_all_that_are_not_closed(
    engine: Engine, organization: int
) -> None:
    bad = add_organization(engine)
    for _ in range(3):
        add_movement(engine, bad, 2**62, "2026-01-10T10:00")
    settle_and_close(engine, JANUARY)
    execute(
        engine,
        "INSERT INTO parked_organization (organization_id, month, reason) VALUES (:id, '2026-02-01', 'a dispute')",
        id=organization,
    )
    assert [one.parked for one in board(engine).months] == [1, 1, 1]
    execute(engine, "UPDATE parked_organization SET resolved_at = now() WHERE reason IS NOT NULL")
    assert [one.parked for one in board(engine).months] == [1, 0, 0]


def test_late_money_is_told_while_it_waits_and_counted_as_adjusted_when_it_is_posted(
    engine: Engine, organization: int
) -> None:
    settle_and_close(engine, JANUARY)
    sell(engine, organization, JANUARY, JANUARY)
    january = month_of(engine, JANUARY)
    assert (january.late, january.waiting) == (0, 1)
    settle(engine, FEBRUARY)
    january = month_of(engine, JANUARY)
    assert (january.late, january.waiting) == (1, 0)


def test_a_month_whose_settlement_gave_up_needs_a_person_until_it_is_settled(engine: Engine, organization: int) -> None:
    for _ in range(3):
        add_movement(engine, organization, 2**62, "2026-01-10T10:00")
    with pytest.raises(IncompleteSettlementError):
        settle(engine, JANUARY, parked_limit=0)
    january = month_of(engine, JANUARY)
    assert january.settled is Stage.ATTENTION
    assert january.failed is not None
    assert january.next_step == "correct what its settlement failed on, and settle it again"
    settle(engine, JANUARY)
    january = month_of(engine, JANUARY)
    assert (january.settled, january.failed, board(engine).parked) == (Stage.DONE, None, 1)


def test_payouts_are_paid_when_every_one_is_confirmed(engine: Engine, organization: int) -> None:
    settle_and_close(engine, JANUARY)
    assert month_of(engine, JANUARY).paid is Stage.NOT_YET
    request(engine, JANUARY)
    january = month_of(engine, JANUARY)
    assert (january.paid, january.payouts) == (Stage.IN_PROGRESS, WaitingPayouts(0, 1, 0, 0))
    execute(engine, "UPDATE payout SET state = 'CONFIRMED', answered_at = now()")
    january = month_of(engine, JANUARY)
    assert (january.paid, january.payouts) == (Stage.DONE, WaitingPayouts(0, 0, 0, 0))
    pay_from(engine, None)
    assert month_of(engine, JANUARY).paid is Stage.DONE


def test_a_month_before_the_first_one_that_is_paid_pays_nobody(engine: Engine, organization: int) -> None:
    settle_and_close(engine, JANUARY)
    for payouts_from in (None, FEBRUARY):
        pay_from(engine, payouts_from)
        january = month_of(engine, JANUARY)
        assert (january.paid, january.next_step) == (Stage.NONE, "write its statements")


def test_payouts_that_are_held_or_in_doubt_need_a_person(engine: Engine, organization: int) -> None:
    settle_and_close(engine, JANUARY, FEBRUARY)
    add_payout(engine, organization, JANUARY, "HELD")
    add_payout(engine, organization, FEBRUARY, "IN_DOUBT")
    first, second, _ = board(engine).months
    assert (first.paid, first.next_step) == (Stage.ATTENTION, "release 1 payout held")
    assert (second.paid, second.next_step) == (Stage.ATTENTION, "resolve 1 payout in doubt")


def test_a_payout_that_came_back_is_told_until_a_balance_takes_it_in(engine: Engine, organization: int) -> None:
    settle_and_close(engine, JANUARY)
    add_payout(engine, organization, JANUARY, "RETURNED")
    execute(engine, "UPDATE settlement_period SET paid_at = now(), stated_at = now() WHERE state = 'CLOSED'")
    assert month_of(engine, JANUARY).next_step == "take back 1 payout"
    settle_and_close(engine, FEBRUARY)
    assert month_of(engine, JANUARY).next_step == ""


def test_each_month_says_what_is_to_happen_next(engine: Engine, organization: int) -> None:
    def steps() -> list[str]:
        return [one.next_step for one in board(engine).months]

    assert steps() == ["settle it"] * 3
    settle(engine, FEBRUARY)
    assert steps()[1] == "settle 2026-01 first"
    settle(engine, JANUARY)
    assert steps() == ["close its books", "close 2026-01 first", "settle it"]
    execute(engine, "INSERT INTO settlement_pass (month, pass, cutoff) VALUES ('2026-02-01', 2, 1)")
    assert steps()[1] == "being settled, pass 2"
    assert month_of(engine, FEBRUARY).settled is Stage.IN_PROGRESS
    execute(engine, "UPDATE settlement_period SET state = 'CLOSING' WHERE month = '2026-01-01'")
    assert steps()[0] == "being closed"
    close(engine, JANUARY)
    assert steps()[0] == "request its payouts"
    request(engine, JANUARY)
    assert steps()[0] == "wait for 1 payout"
    with engine.begin() as connection:
        pause(connection, "the bank is down", "test")
    assert steps()[0] == "resume payouts for 1 payout"
    execute(engine, "UPDATE payout SET state = 'CONFIRMED', answered_at = now()")
    assert steps()[0] == "write its statements"
    execute(engine, "UPDATE settlement_period SET stated_at = now() WHERE state = 'CLOSED'")
    assert steps()[0] == ""
    assert month_of(engine, JANUARY).issued is Stage.DONE


def test_boards_have_the_same_version_exactly_when_they_say_the_same(engine: Engine, organization: int) -> None:
    before = board(engine).version
    assert board(engine).version == before
    settle(engine, JANUARY)
    settled = board(engine).version
    assert settled != before
    settle(engine, JANUARY)
    assert board(engine).version == settled
    sell(engine, organization, JANUARY)
    settle(engine, JANUARY)
    assert board(engine).version != settled


def test_the_board_scans_no_table_that_grows(engine: Engine, organization: int) -> None:
    settle_and_close(engine, JANUARY)
    for statement in (
        """
        INSERT INTO organization (external_ref, name, timezone, currency, commission_rate_bps, commission_tax_bps,
            joined_on)
        SELECT 'many-' || n, 'many', 'Europe/Madrid', 'EUR', 0, 0, '2020-01-01' FROM generate_series(1, 5000) AS n
        """,
        """
        INSERT INTO money_movement (external_ref, organization_id, kind, currency, amount, commission_rate_bps,
            commission_tax_bps, occurred_at)
        SELECT 'many-' || id, id, 'CAPTURE', 'EUR', 100, 0, 0, '2026-02-10Z' FROM organization
        """,
    ):
        execute(engine, statement)
    settle_and_close(engine, FEBRUARY)
    request(engine, FEBRUARY)
    execute(engine, "UPDATE payout SET state = 'CONFIRMED', answered_at = now() WHERE id > 10")
    execute(engine, "ANALYZE")
    sent: list[tuple[str, Any]] = []

    @event.listens_for(engine, "before_cursor_execute")
    def remember(_connection: object, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
        sent.append((statement, parameters))

    assert month_of(engine, FEBRUARY).payouts.requested == 10
    questions = [question for question in sent if question[0].lstrip().startswith(("SELECT", "WITH"))]
    growing = ("ledger_entry", "money_movement", "organization_balance", "payout")
    with engine.connect() as connection:
        for statement, parameters in questions:
            plan = "\n".join(connection.exec_driver_sql(f"EXPLAIN {statement}", parameters).scalars())
            scanned = [table for table in growing if f"Seq Scan on {table} " in plan]
            assert not scanned, plan
