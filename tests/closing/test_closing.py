"""Closing the books, by its business rules."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from sqlalchemy import Engine, event, text

from tests.settlement.test_settlement import NOW, ledger, settle, tamper
from tests.support.books import (
    APRIL,
    FEBRUARY,
    FIRST,
    JANUARY,
    MARCH,
    add_opening_balance,
    add_payout,
    balances,
    breaches,
    close,
    set_minimum,
    settle_and_close,
    state_of,
)
from tests.support.rows import add_movement, add_organization, instant
from tests.support.sql_statements import begin_pass, execute, refusal
from ticketflow_orch.closing import IncompleteClosingError
from ticketflow_orch.closing.balances import BalanceWriter
from ticketflow_orch.closing.freeze import freeze
from ticketflow_orch.closing.turn import months_to_close
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.months import Month
from ticketflow_orch.settlement.passes import begin_or_join

FREE = {"commission_rate_bps": 0, "commission_tax_bps": 0}


def manual(engine: Engine, organization: int, amount: int, occurred_at: str, **values: object) -> int:
    return add_movement(engine, organization, amount, occurred_at, kind="MANUAL", reason="as agreed", **FREE | values)


# --- What a balance says


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


# --- Which month may be closed


def test_months_are_closed_in_order(engine: Engine) -> None:
    organization = add_organization(engine)
    manual(engine, organization, 700, "2026-01-10T10:00")
    for month in (FEBRUARY, MARCH):
        settle(engine, month)
    with pytest.raises(
        TicketflowError, match=r"^2026-01 is OPEN, and months are closed in order; close it before 2026-02.$"
    ):
        close(engine, FEBRUARY)
    settle(engine, JANUARY)
    with pytest.raises(TicketflowError, match=r"^2026-01 is SETTLED, and .* in order; close it before 2026-02"):
        close(engine, FEBRUARY)
    close(engine, JANUARY)
    with pytest.raises(TicketflowError, match=r"^2026-02 is SETTLED, and .* in order; close it before 2026-03"):
        close(engine, MARCH)
    assert [state_of(engine, month) for month in (JANUARY, FEBRUARY, MARCH)] == ["CLOSED", "SETTLED", "SETTLED"]


def test_a_month_that_was_settled_before_anybody_sold_anything_is_closed_first(engine: Engine) -> None:
    manual(engine, add_organization(engine), 700, "2026-02-10T10:00")
    for month in (Month(2025, 12), FEBRUARY):
        settle(engine, month)
    with pytest.raises(TicketflowError, match=r"^2025-12 is SETTLED, and months are closed in order"):
        close(engine, FEBRUARY)
    close(engine, Month(2025, 12))
    with pytest.raises(TicketflowError, match=r"^2026-01 is OPEN, and months are closed in order"):
        close(engine, FEBRUARY)


def test_a_month_before_the_books_is_not_closed_any_more(engine: Engine) -> None:
    settle_and_close(engine, FEBRUARY)
    with pytest.raises(
        TicketflowError, match=r"^2026-01 lies before 2026-02, .* late for it is adjusted in 2026-03\.$"
    ):
        close(engine, JANUARY)


def test_a_month_that_is_not_settled_is_not_closed(engine: Engine) -> None:
    manual(engine, add_organization(engine), 700, "2026-03-10T10:00")
    with pytest.raises(TicketflowError, match=r"^2026-03 is OPEN; settle it, then close it.$"):
        close(engine, MARCH)


def test_a_pass_that_was_left_running_is_brought_to_its_end_by_the_closing(engine: Engine) -> None:
    organization = add_organization(engine)
    settle(engine)
    manual(engine, organization, 700, "2026-03-10T10:00")
    begin_or_join(engine, MARCH)
    begin_pass(engine, "2026-04-01")
    assert close(engine, MARCH).closed_by == "test"
    assert balances(engine, "net") == [(700,)]


def test_what_came_since_a_month_was_settled_is_settled_before_it_is_closed(engine: Engine) -> None:
    organization = add_organization(engine)
    settle(engine)
    manual(engine, organization, 700, "2026-03-10T10:00")
    joined_late = add_organization(engine, joined_on=date(2026, 3, 15))
    close(engine, MARCH)
    assert balances(engine, "organization_id", "net") == [(organization, 700), (joined_late, 0)]


def test_a_month_is_not_closed_while_what_came_since_cannot_be_settled(engine: Engine) -> None:
    organization = add_organization(engine, external_ref="bad")
    settle(engine)
    for _ in range(3):
        add_movement(engine, organization, 2**62, "2026-03-10T10:00")
    with pytest.raises(IncompleteClosingError, match=r"^2026-03 is not closed, because what came since .*bad fails"):
        close(engine, MARCH, parked_limit=0)
    assert state_of(engine, MARCH) == "SETTLED"


def test_the_months_that_may_be_closed_follow_one_another(engine: Engine) -> None:
    def closable() -> list[str]:
        with engine.connect() as connection:
            return [str(month) for month in months_to_close(connection, NOW, FIRST)]

    assert closable() == []
    manual(engine, add_organization(engine), 700, "2026-01-10T10:00")
    assert closable() == []
    for month in (JANUARY, FEBRUARY, APRIL):
        settle(engine, month)
    assert closable() == ["2026-01", "2026-02"]
    close(engine, JANUARY)
    execute(engine, "UPDATE settlement_period SET state = 'CLOSING' WHERE month = '2026-02-01'")
    assert closable() == ["2026-02"]


# --- A red check refuses by name


def test_a_month_whose_entries_are_not_what_its_movements_come_to_is_not_closed(engine: Engine) -> None:
    good, bad = add_organization(engine), add_organization(engine, external_ref="bad")
    for organization in (good, bad):
        manual(engine, organization, 700, "2026-03-10T10:00")
    settle(engine)
    tamper(engine, f"UPDATE ledger_entry SET fees = 701, net = 701 WHERE organization_id = {bad}")
    with pytest.raises(TicketflowError, match=r"check honest is red for 2026-03: bad EUR posted 701, recomputed 700.$"):
        close(engine, MARCH)
    assert state_of(engine, MARCH) == "SETTLED"
    assert balances(engine) == []
    # It is posted again as soon as it is recomputed.
    settle(engine, full=True)
    close(engine, MARCH)
    assert balances(engine, "net") == [(700,), (700,)]


def test_what_turns_out_to_be_wrong_once_nothing_can_change_gives_the_month_back(engine: Engine) -> None:
    bad = add_organization(engine, external_ref="bad")
    manual(engine, bad, 700, "2026-03-10T10:00")
    settle(engine)

    @event.listens_for(engine, "after_cursor_execute")
    def tamper_late(connection: Any, cursor: object, statement: str, *_: object) -> None:
        if "state = 'CLOSING' WHERE" in statement:
            connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
            connection.exec_driver_sql("UPDATE ledger_entry SET fees = 701, net = 701")

    with pytest.raises(TicketflowError, match=r"check honest is red for 2026-03: bad EUR posted 701, recomputed 700.$"):
        close(engine, MARCH)
    assert state_of(engine, MARCH) == "SETTLED"
    event.remove(engine, "after_cursor_execute", tamper_late)
    tamper(engine, "UPDATE ledger_entry SET fees = 700, net = 700")
    close(engine, MARCH)


def test_a_month_of_which_there_are_balances_is_never_given_back(engine: Engine) -> None:
    settle_and_close(engine, FEBRUARY)
    add_organization(engine)
    settle(engine)
    execute(engine, "UPDATE settlement_period SET state = 'CLOSING' WHERE month = '2026-03-01'")
    execute(
        engine,
        "INSERT INTO organization_balance (organization_id, currency, month, opening, net, returned, due, payable,"
        " closing) SELECT id, 'EUR', '2026-03-01', 0, 0, 0, 0, 0, 0 FROM organization",
    )
    back = "UPDATE settlement_period SET state = 'SETTLED' WHERE month = '2026-03-01'"
    assert "month 2026-03 has balances: its closing can only be finished" in refusal(engine, back)
    tamper(engine, "UPDATE ledger_entry SET fees = 701, net = 701 WHERE month = '2026-03-01'")
    with pytest.raises(TicketflowError, match=r"check honest is red"):
        close(engine, MARCH)
    assert state_of(engine, MARCH) == "CLOSING"


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (
            "UPDATE organization_balance SET opening = 1, due = due + 1, closing = closing + 1",
            "check chain_holds is red for 2026-01: .* EUR opens with 1 instead of 0",
        ),
        ("DELETE FROM organization_balance", "check chain_holds is red for 2026-01: .* EUR has entries and no balance"),
        (
            "UPDATE organization_balance SET net = 1, due = due + 1 - net, closing = closing + 1 - net",
            "check closed_months_unchanged is red for 2026-01: .* EUR balanced 1, posted -100",
        ),
        (
            "ALTER TABLE organization_balance DISABLE TRIGGER organization_balance_append_only",
            "does not guard the books: trigger organization_balance_append_only is missing or switched off",
        ),
    ],
)
def test_nothing_is_built_on_books_that_were_tampered_with(engine: Engine, damage: str, sentence: str) -> None:
    manual(engine, add_organization(engine), -100, "2026-01-10T10:00")
    settle_and_close(engine, JANUARY)
    settle(engine, FEBRUARY)
    tamper(engine, damage)
    with pytest.raises(TicketflowError, match=f"^2026-02 is not closed, because .*{sentence}"):
        close(engine, FEBRUARY)
    assert state_of(engine, FEBRUARY) == "SETTLED"


# --- One organization's data


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


# --- What is closed stays


@pytest.mark.every_server
def test_a_closed_month_says_who_closed_it_and_is_closed_once(engine: Engine) -> None:
    organization = add_organization(engine)
    manual(engine, organization, 700, "2026-03-10T10:00")
    settle(engine)
    first = close(engine, MARCH)
    assert (first.found_closed, first.resumed, first.rows_new) == (False, False, 1)
    assert [(one.currency, one.organizations, one.paying, one.payable) for one in first.balances] == [
        ("EUR", 1, 1, 700)
    ]
    with engine.connect() as connection:
        role = connection.execute(text("SELECT session_user")).scalar_one()
        run = connection.execute(text("SELECT closed_run_id FROM settlement_period")).scalar_one()
    assert (first.closed_by, first.closed_role, run) == ("test", role, "run")
    again = close(engine, MARCH)
    assert (again.found_closed, again.rows_new, again.closed_at) == (True, 0, first.closed_at)
    assert settle(engine).settlement is None


def test_balances_are_written_while_their_month_is_being_closed_and_never_again(engine: Engine) -> None:
    add_organization(engine)
    settle(engine)
    row = (
        "INSERT INTO organization_balance (organization_id, currency, month, opening, net, returned, due, payable,"
        " closing) SELECT max(id) + 7, 'EUR', '2026-03-01', 0, 0, 0, 0, 0, 0 FROM organization"
    )
    assert "month 2026-03 is not being closed" in refusal(engine, row)
    close(engine, MARCH)
    assert "month 2026-03 is not being closed" in refusal(engine, row)
    for change in ("UPDATE organization_balance SET closing = 0", "DELETE FROM organization_balance"):
        assert "a closed month never changes" in refusal(engine, change)


def test_a_chunk_takes_two_statements_and_one_transaction(engine: Engine) -> None:
    for _ in range(10):
        manual(engine, add_organization(engine), 5, "2026-03-10T10:00")
    settle(engine)
    freeze(engine, MARCH, NOW, FIRST)
    seen: list[str] = []

    @event.listens_for(engine, "before_cursor_execute")
    def note(connection: object, cursor: object, statement: str, *_: object) -> None:
        seen.append(statement)

    @event.listens_for(engine, "commit")
    def note_commit(connection: object) -> None:
        seen.append("COMMIT")

    writer = BalanceWriter(engine, MARCH, parked_limit=0)
    assert [writer.write(low, high) for low, high in writer.chunks(4)] == [4, 4, 2]
    cutting, *chunks = seen
    assert "RECURSIVE" in cutting
    assert all("FOR UPDATE" in statement for statement in chunks[0::3])
    assert all("INSERT INTO organization_balance" in statement for statement in chunks[1::3])
    assert chunks[2::3] == ["COMMIT"] * 3
