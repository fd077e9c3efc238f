"""What keeps a month or an organization from going on stops nothing else, and is named with what removes it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta

import pytest
from sqlalchemy import Engine

from tests.support.books import (
    APRIL,
    FIRST,
    JANUARY,
    add_opening_balance,
    balances,
    close,
    settle_and_close,
    state_of,
)
from tests.support.disturbed import (
    OWED,
    all_is_well,
    health,
    poisoned,
    sold,
    states,
    terminated,
)
from tests.support.payable import pay_from, rows
from tests.support.rows import add_movement, add_organization, add_void, instant
from tests.support.settled import settle
from tests.support.sql_statements import execute
from ticketflow_orch.closing import IncompleteClosingError
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.months import Month
from ticketflow_orch.reports.board import read_board


@pytest.mark.parametrize("entered_late", [False, True])
def test_an_organization_in_a_zone_that_nobody_knows_stops_itself_alone_and_is_named(
    engine: Engine, unattended: Callable[..., None], *, entered_late: bool
) -> None:
    sold(engine)
    if entered_late:
        settle(engine, JANUARY)
    lost = sold(engine, external_ref="mars", timezone="Mars/Olympus")
    unattended("2026-02-02")
    assert states(engine) == {"2026-01": "CLOSED"}
    [line] = [line for line in health(engine, after=timedelta(hours=25)) if "mars" in line]
    assert line.startswith("data: organization mars: ")
    assert "Mars/Olympus" in line
    execute(engine, "UPDATE organization SET timezone = 'Asia/Tokyo' WHERE id = :id", id=lost)
    unattended("2026-03-02")
    assert balances(engine, "net", where=f"organization_id = {lost}") == [(OWED,)]
    assert all_is_well(engine)
    assert not any("mars" in line for line in health(engine, after=timedelta(hours=25)))


def test_an_opening_balance_of_somebody_in_an_unknown_zone_waits_and_keeps_nobody_from_a_statement(
    engine: Engine, unattended: Callable[..., None]
) -> None:
    sold(engine)
    lost = add_organization(engine, timezone="Mars/Olympus", joined_on=date(2026, 6, 1))
    add_opening_balance(engine, lost, 500)
    unattended("2026-02-02")
    assert rows(engine, "SELECT state, stated_at IS NOT NULL FROM settlement_period") == [("CLOSED", True)]
    execute(engine, "UPDATE organization SET timezone = 'Asia/Tokyo' WHERE id = :id", id=lost)
    unattended("2026-03-02")
    assert balances(engine, "month", "opening", where=f"organization_id = {lost}") == [(date(2026, 2, 1), 500)]


def test_an_organization_that_cannot_be_settled_is_named_and_goes_on_when_its_data_are_corrected(
    engine: Engine, unattended: Callable[..., None]
) -> None:
    bad = add_organization(engine, external_ref="bad")
    poison = poisoned(engine, bad)
    sold(engine)
    unattended("2026-02-02")
    assert states(engine) == {"2026-01": "CLOSED"}
    [line] = [line for line in health(engine, after=timedelta(hours=25)) if "bad" in line]
    assert line.startswith("organization bad is parked in 2026-01: bigint out of range")
    assert line.endswith("void what is wrong among its movements; the next settlement takes it in.")
    for movement in poison:
        add_void(engine, movement)
    unattended("2026-03-02")
    assert states(engine) == {"2026-01": "CLOSED", "2026-02": "CLOSED"}
    assert not any("bad" in line for line in health(engine, after=timedelta(hours=25)))
    assert all_is_well(engine)


def test_an_organization_whose_balance_cannot_be_written_is_named_and_catches_up(
    engine: Engine, unattended: Callable[..., None]
) -> None:
    rich = add_organization(engine, external_ref="rich")
    add_opening_balance(engine, rich, 2**62)
    huge = add_movement(engine, rich, 2**62, "2026-01-10T10:00", commission_rate_bps=0, commission_tax_bps=0)
    sold(engine)
    unattended("2026-02-02")
    assert states(engine) == {"2026-01": "CLOSED"}
    [line] = [line for line in health(engine, after=timedelta(hours=25)) if "rich" in line]
    assert line.startswith("organization rich is parked in 2026-01: its balance: ")
    add_void(engine, huge)
    unattended("2026-03-02")
    assert states(engine) == {"2026-01": "CLOSED", "2026-02": "CLOSED"}
    assert balances(engine, "month", "opening", "net", where=f"organization_id = {rich}") == [
        (date(2026, 2, 1), 2**62, 0)
    ]
    assert all_is_well(engine)
    assert not any("rich" in line for line in health(engine, after=timedelta(hours=25)))


def test_a_closing_that_cannot_settle_what_came_since_says_why(engine: Engine) -> None:
    sold(engine)
    settle(engine, JANUARY)
    sold(engine, external_ref="mars", timezone="Mars/Olympus")
    with pytest.raises(IncompleteClosingError, match=r"2026-01 is not closed, .* 1 organizations are in time zones"):
        close(engine, JANUARY, parked_limit=0)
    assert state_of(engine, JANUARY) == "SETTLED"
    close(engine, JANUARY)
    assert state_of(engine, JANUARY) == "CLOSED"


def test_a_host_whose_clock_is_a_month_ahead_settles_no_month_that_is_not_over(engine: Engine) -> None:
    today = datetime.now(UTC)
    add_movement(engine, add_organization(engine), 100_000, today.isoformat())
    month = Month(today.year, today.month)
    with pytest.raises(TicketflowError, match=f"{month} is not over in Europe/Madrid before "):
        settle(engine, month, now=today + timedelta(days=40))
    assert states(engine) == {}


def test_what_the_board_says_is_next_where_a_rerun_was_left(engine: Engine) -> None:
    sold(engine)
    settle(engine, JANUARY)
    terminated(engine, JANUARY)
    with engine.connect() as connection:
        [month] = read_board(connection, instant("2026-02-05T05:00"), FIRST).months
    assert (month.state, month.next_step) == ("SETTLED", "being settled, pass 2")


def test_movements_before_the_first_month_are_named_since_nobody_settles_them(engine: Engine) -> None:
    organization = sold(engine, "2026-04-10T10:00")
    settle_and_close(engine, APRIL)
    assert not any("first month" in line for line in health(engine))
    add_movement(engine, organization, 100, "2024-12-10T10:00", external_ref="old")
    [line] = [line for line in health(engine) if "first month" in line]
    assert line.startswith("movements: some lie before 2025-01, the first month, such as old at 2024-12-10T10:00:00")


def test_a_month_that_stands_still_for_three_days_is_named_with_its_command(
    engine: Engine, unattended: Callable[..., None]
) -> None:
    pay_from(engine, None)
    sold(engine, "2026-04-10T10:00")
    settle(engine, APRIL)
    assert not any("closed" in line for line in health(engine, after=timedelta(days=2)))
    [line] = [line for line in health(engine, after=timedelta(days=4)) if "closed" in line]
    assert line.startswith("2026-04 is SETTLED and not closed, since ")
    assert line.endswith("`ticketflow close 2026-04` closes it, or says why not.")
    close(engine, APRIL)
    [line] = [line for line in health(engine, after=timedelta(days=4)) if "closed" in line]
    assert line.startswith("2026-04 was closed ")
    assert " and lacks statements; materialize settlement_statements for it" in line
    unattended("2026-05-04")
    assert not any("closed" in line for line in health(engine, after=timedelta(days=4)))
