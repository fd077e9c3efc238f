"""Closing the books, by its business rules."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from sqlalchemy import Engine, event, text

from tests.support.books import (
    APRIL,
    FEBRUARY,
    FIRST,
    JANUARY,
    MARCH,
    balances,
    close,
    manual,
    settle_and_close,
    state_of,
)
from tests.support.rows import add_movement, add_organization
from tests.support.settled import NOW, settle, tamper
from tests.support.sql_statements import begin_pass, execute, refusal
from ticketflow_orch.closing import IncompleteClosingError
from ticketflow_orch.closing.balances import BalanceWriter
from ticketflow_orch.closing.freeze import freeze
from ticketflow_orch.closing.turn import months_to_close
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.months import Month
from ticketflow_orch.settlement.passes import begin_or_join

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
