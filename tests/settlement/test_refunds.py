"""Refunds, chargebacks and voids: what is given back lowers the month in which it is, with its commission."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from tests.support.books import FEBRUARY, JANUARY
from tests.support.rows import add_event, add_movement, add_organization, add_reservation, add_void
from tests.support.settled import KEPT, MARCH, ledger, nets, refund, settle
from tests.support.sql_statements import execute


@pytest.mark.every_server
@pytest.mark.parametrize(
    ("returned", "february"), [({}, -26_400), (KEPT, -30_000)], ids=["commission returned", "commission kept"]
)
def test_three_months_of_a_theatre(engine: Engine, returned: dict[str, int], february: int) -> None:
    theatre = add_organization(engine)
    capture = add_movement(engine, theatre, 100_000, "2026-01-10T10:00")
    refund(engine, theatre, capture, 30_000, "2026-02-10T10:00", **returned)
    add_movement(engine, theatre, 50_000, "2026-03-10T10:00")
    for month in (JANUARY, FEBRUARY, MARCH):
        settle(engine, month)
    assert nets(engine) == [88_000, february, 44_000]
    assert all(settle(engine, month).changed_nothing for month in (JANUARY, FEBRUARY))


def test_a_refund_is_posted_when_it_happens_and_the_past_stays_to_the_byte(engine: Engine) -> None:
    organization = add_organization(engine)
    capture = add_movement(engine, organization, 100_000, "2026-01-10T10:00")
    settle(engine, JANUARY)
    january = ledger(engine, "ledger_entry", "month", "posted_at")
    refund(engine, organization, capture, 30_000, "2026-03-05T10:00")
    for month in (JANUARY, MARCH):
        settle(engine, month)
    assert ledger(engine, "ledger_entry", "month", "posted_at")[:1] == january
    assert nets(engine) == [88_000, -26_400]


def test_a_refund_gives_back_the_commission_of_what_it_refunds(engine: Engine) -> None:
    organization = add_organization(engine)
    first = add_movement(engine, organization, 5_000, "2026-02-10T10:00", commission_rate_bps=1000)
    add_movement(engine, organization, 5_000, "2026-02-20T10:00", commission_rate_bps=1500)
    refund(engine, organization, first, 5_000, "2026-03-10T10:00", commission_rate_bps=1000)
    for month in (FEBRUARY, MARCH):
        settle(engine, month)
    assert [row[2] for row in ledger(engine, "month", "sequence", "commission")] == [500 + 750, -500]


def test_items_refunded_one_by_one_give_back_what_they_were_taxed_together(engine: Engine) -> None:
    organization = add_organization(engine)
    rates = {"commission_rate_bps": 10_000, "commission_tax_bps": 2000}
    items = (6833, 6833, 5750, 8500)
    captures = [add_movement(engine, organization, item, "2026-02-10T10:00", **rates) for item in items]
    settle(engine, FEBRUARY)
    for capture, item in zip(captures, items, strict=True):
        refund(engine, organization, capture, item, "2026-03-10T10:00", **rates)
        settle(engine)
    taxes = [row[2] for row in ledger(engine, "month", "sequence", "commission_tax")]
    assert taxes[0] == 5583
    assert sum(taxes[1:]) == -5583
    # Rounded item by item it would have been a cent more.
    assert sum(round(item * 0.2) for item in items) == 5584


def test_a_cancelled_reservation_moves_no_money_until_it_is_refunded(engine: Engine) -> None:
    organization = add_organization(engine)
    reservation = add_reservation(engine, add_event(engine, organization))
    capture = add_movement(engine, organization, 10_000, "2026-03-10T10:00", reservation_id=reservation)
    settle(engine)
    execute(engine, "UPDATE reservation SET status = 'CANCELLED' WHERE id = :id", id=reservation)
    assert settle(engine).changed_nothing
    refund(engine, organization, capture, 10_000, "2026-03-11T10:00", reservation_id=reservation)
    settle(engine)
    assert ledger(engine, "sequence", "captures", "refunds", "net") == [(0, 10_000, 0, 8_800), (1, 0, -10_000, -8_800)]


@pytest.mark.parametrize("kind", ["REFUND", "CHARGEBACK"])
@pytest.mark.parametrize("with_reservation", [True, False], ids=["of a reservation", "by hand"])
def test_money_given_back_lowers_the_net_whoever_gave_it_back(
    engine: Engine, kind: str, with_reservation: bool
) -> None:
    organization = add_organization(engine)
    reservation = add_reservation(engine, add_event(engine, organization)) if with_reservation else None
    capture = add_movement(engine, organization, 10_000, "2026-03-10T10:00", reservation_id=reservation)
    add_movement(
        engine, organization, -4_000, "2026-03-11T10:00", kind=kind, reverses_id=capture, reservation_id=reservation,
        **KEPT,
    )  # fmt: skip
    settle(engine)
    assert nets(engine) == [8_800 - 4_000]


def test_a_month_whose_sales_were_all_refunded_says_so_with_a_row(engine: Engine) -> None:
    organization = add_organization(engine)
    capture = add_movement(engine, organization, 10_000, "2026-03-10T10:00")
    refund(engine, organization, capture, 10_000, "2026-03-11T10:00")
    settle(engine)
    assert ledger(engine) == [(organization, "EUR", 0, 10_000, -10_000, 0, 0, 0)]


def test_a_sale_that_was_voided_leaves_a_row_of_nothing(engine: Engine) -> None:
    organization = add_organization(engine)
    add_void(engine, add_movement(engine, organization, 10_000, "2026-03-10T10:00", currency="USD"))
    settle(engine)
    assert ledger(engine) == [(organization, currency, 0, 0, 0, 0, 0, 0) for currency in ("EUR", "USD")]
