"""What is read of what stands in the way: who is parked, what is held, which months wait."""

from __future__ import annotations

from datetime import date

from sqlalchemy import Engine

from tests.support.books import FIRST, JANUARY, settle_and_close
from tests.support.obstacles import said
from tests.support.payable import owing, pay_from, request, rows
from tests.support.rows import add_movement, add_organization, instant
from tests.support.sql_statements import execute
from ticketflow_orch.db.engine import transaction
from ticketflow_orch.months import Month
from ticketflow_orch.payouts.actions import Selection, hold, release
from ticketflow_orch.payouts.parking import park, unpark


def test_nothing_stands_in_the_way_of_a_fresh_database(engine: Engine) -> None:
    assert said(engine) == []


def test_who_is_parked_by_hand_is_named_with_the_reason_until_somebody_ends_it(engine: Engine) -> None:
    add_organization(engine, external_ref="hall")
    park(engine, "hall", "bank account disputed", "ana", FIRST)
    assert said(engine) == [
        "organization hall is parked by hand from 2025-01 on: bank account disputed; `ticketflow unpark hall` ends that"
    ]
    unpark(engine, "hall", "ana")
    assert said(engine) == []


def test_of_many_parked_the_first_are_named_and_the_others_counted(engine: Engine) -> None:
    for number in range(22):
        name = f"hall-{number:02}"
        add_organization(engine, external_ref=name)
        park(engine, name, "disputed", "ana", FIRST)
    lines = said(engine)
    assert len(lines) == 21
    assert lines[0].startswith("organization hall-00 is parked")
    assert lines[-1] == "2 more organizations parked; `ticketflow status` lists them"


def test_an_organization_that_fails_in_several_months_is_named_once(engine: Engine) -> None:
    bad = add_organization(engine, external_ref="bad")
    for month in (1, 2, 3):
        for _ in range(3):
            add_movement(engine, bad, 2**62, f"2026-{month:02}-10T10:00")
    settle_and_close(engine, JANUARY, Month(2026, 2), Month(2026, 3))
    [line] = [line for line in said(engine) if "bad" in line]
    assert line.startswith("organization bad is parked in 2026-01 and 2 other months: bigint out of range; void what")


def test_held_payouts_are_counted_by_month_until_they_are_released(engine: Engine) -> None:
    owing(engine)
    request(engine)
    [(reference,)] = rows(engine, "SELECT public_id FROM payout")
    with transaction(engine) as connection:
        hold(connection, str(reference), "asked to", "ana")
    [line] = [line for line in said(engine) if "payouts" in line]
    assert line.startswith(
        "payouts: 1 of 2026-03 held; `ticketflow payouts list --month 2026-03 --state held` says why"
    )
    release(engine, Selection(reference=str(reference)), "ana")
    assert not any("held" in line for line in said(engine))


def test_a_closed_month_waits_for_its_payouts_where_it_pays(engine: Engine) -> None:
    add_movement(engine, add_organization(engine), 100_000, "2026-01-10T10:00")
    settle_and_close(engine, JANUARY)
    for later in (None, Month(2026, 2)):
        pay_from(engine, later)
        assert said(engine) == []
    pay_from(engine, JANUARY)
    assert said(engine) == [
        "2026-01 is closed and not paid; see the last run of payouts, or materialize it for 2026-01"
    ]
    request(engine, JANUARY)
    assert said(engine) == []


def test_money_that_waits_while_only_some_are_paid_is_named(engine: Engine) -> None:
    pay_from(engine, None)
    paid, waits = (add_organization(engine) for _ in range(2))
    for organization in (paid, waits):
        add_movement(engine, organization, 100_000, "2026-01-10T10:00")
    settle_and_close(engine, JANUARY)
    assert said(engine) == []
    pay_from(engine, Month(2026, 2), paid)
    assert said(engine) == [
        "payouts are off but for organizations with a month of their own, and 880.00 EUR of 1 organization wait; "
        "`ticketflow payouts from YYYY-MM` names the first month that is paid"
    ]


def test_opening_balances_without_any_business_wait_for_a_month_that_somebody_settles(engine: Engine) -> None:
    hall = add_organization(engine, external_ref="hall", joined_on=date(2020, 1, 1))
    execute(engine, "INSERT INTO opening_balance (organization_id, currency, amount) VALUES (:id, 'EUR', 700)", id=hall)
    assert said(engine, now=instant("2025-01-31T12:00")) == [], "the first month is not over"
    assert said(engine, now=instant("2025-02-02T12:00")) == [
        "opening balances: 1 wait, such as that of hall, because no month has any movement; "
        "`ticketflow settle 2025-01` begins the books with that month"
    ]
    settle_and_close(engine, FIRST)
    assert rows(engine, "SELECT opening, payable, closing FROM organization_balance") == [(700, 700, 0)]
    assert "opening balances" not in "".join(said(engine, now=instant("2025-02-02T12:00")))


def test_opening_balances_wait_for_business_as_long_as_there_is_some(engine: Engine) -> None:
    hall = add_organization(engine, external_ref="hall")
    execute(engine, "INSERT INTO opening_balance (organization_id, currency, amount) VALUES (:id, 'EUR', 700)", id=hall)
    add_movement(engine, hall, 900, "2025-03-10T10:00")
    assert said(engine, now=instant("2025-04-02T12:00")) == []
