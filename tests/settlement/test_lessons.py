"""What other ticketing and billing systems got wrong, one test each; and an example that finance can follow by hand."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta

import pytest
from sqlalchemy import Engine, event

from tests.settlement.test_settlement import MARCH, NOW, ledger, settle
from tests.support.rows import add_event, add_movement, add_organization, add_reservation, add_void, instant
from tests.support.sql_statements import execute, objection, post
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.migrations.ledger_key import KEY
from ticketflow_orch.months import Month, Window, months_between
from ticketflow_orch.reports.explain import explain
from ticketflow_orch.settlement.passes import begin_or_join, plan
from ticketflow_orch.settlement.preview import dry_run

JANUARY, FEBRUARY, APRIL = Month(2026, 1), Month(2026, 2), Month(2026, 4)
KEPT = {"commission_rate_bps": 0, "commission_tax_bps": 0}


def refund(engine: Engine, organization: int, capture: int, amount: int, occurred_at: str, **values: object) -> int:
    return add_movement(
        engine, organization, -amount, occurred_at, kind="REFUND", reverses_id=capture, **values
    )  # fmt: skip


def nets(engine: Engine, *organizations: int) -> list[int]:
    rows = ledger(engine, "month", "sequence", "organization_id", "net")
    return [net for _, _, organization, net in rows if not organizations or organization in organizations]


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


def test_a_month_is_over_when_it_is_over_where_the_organization_is(engine: Engine) -> None:
    add_organization(engine, timezone="Europe/Paris")
    with pytest.raises(TicketflowError, match="2026-03 is not over in Europe/Paris before 2026-04-01 00:00 "):
        settle(engine, now=instant("2026-03-31T21:30"))
    assert ledger(engine) == []
    settle(engine, now=instant("2026-03-31T22:30"))
    assert len(ledger(engine)) == 1


@pytest.mark.parametrize("hours", [-1, 1])
@pytest.mark.parametrize("order", [(MARCH, APRIL), (APRIL, MARCH)], ids=["in order", "the later one first"])
def test_no_movement_is_lost_or_counted_twice_when_the_rules_of_a_zone_change(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, hours: int, order: tuple[Month, Month]
) -> None:
    """As Almaty's did at the end of February 2024, of which releases of the zone database knew a month before."""
    organization = add_organization(engine, external_ref="almaty", timezone="Asia/Almaty")
    edge = APRIL.window("Asia/Almaty").starts_at
    for minutes in (-90, -30, 30, 90):
        add_movement(engine, organization, 10_000, (edge + timedelta(minutes=minutes)).isoformat())
    first, second = order
    settle(engine, first)
    rules = Month.window

    def changed(month: Month, timezone: str) -> Window:
        was = rules(month, timezone)
        return Window(was.starts_at + timedelta(hours=hours), was.ends_at + timedelta(hours=hours))

    monkeypatch.setattr(Month, "window", changed)
    rehearsed = dry_run(engine, second, now=NOW, first_month=JANUARY)
    with engine.connect() as connection:
        explained = explain(connection, "almaty", second)
    settle(engine, second)
    assert ledger(engine, "month", "sequence", "captures") == [
        (MARCH.first_day, 0, 20_000),
        (APRIL.first_day, 0, 20_000),
    ]
    assert [total.net for total in rehearsed.totals] == [17_600]
    assert sum(line.captures for line in explained.lines) == 20_000


def test_two_organizations_in_one_zone_agree_whenever_they_were_set_up(engine: Engine) -> None:
    for joined_on in (date(2026, 1, 15), date(2026, 6, 15)):
        organization = add_organization(engine, timezone="America/New_York", joined_on=joined_on)
        add_movement(engine, organization, 100, "2026-04-01T03:30")
    settle(engine)
    assert ledger(engine, "month", "sequence", "captures") == [(MARCH.first_day, 0, 100)] * 2


def test_the_last_day_of_a_month_belongs_to_it_to_its_end(engine: Engine) -> None:
    organization = add_organization(engine, timezone="Europe/Berlin")
    for moment in ("05-31T00:30", "05-31T12:00", "05-31T23:59:59.999999", "06-01T00:00"):
        add_movement(engine, organization, 1, f"2026-{moment}+02:00")
    settle(engine, Month(2026, 5))
    assert ledger(engine, "organization_id", "currency", "captures") == [(organization, "EUR", 3)]


def test_an_earlier_month_can_be_settled_after_a_later_one(engine: Engine) -> None:
    organization = add_organization(engine)
    add_movement(engine, organization, 100, "2026-02-10T10:00")
    add_movement(engine, organization, 1000, "2026-03-10T10:00")
    settle(engine)
    settle(engine, FEBRUARY)
    assert nets(engine) == [88, 880]


def test_a_second_tick_an_hour_later_joins_the_first_that_is_still_at_work(engine: Engine) -> None:
    add_organization(engine)
    at_work, go_on = threading.Event(), threading.Event()

    @event.listens_for(engine, "before_cursor_execute")
    def hold_up_the_first(connection: object, cursor: object, statement: str, *_: object) -> None:
        if "INSERT INTO ledger_entry" in statement and not at_work.is_set():
            at_work.set()
            assert go_on.wait(timeout=60)

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(settle, engine, now=NOW)
        assert at_work.wait(timeout=60)
        second = threads.submit(settle, engine, now=NOW + timedelta(hours=1))
        with pytest.raises(TimeoutError):
            second.result(timeout=0.3)
        go_on.set()
        assert [run.result(timeout=60).joined for run in (first, second)] == [False, True]
    assert len(ledger(engine)) == 1


def test_a_backfill_that_is_started_again_finds_nothing_to_do(engine: Engine) -> None:
    organizations = [add_organization(engine) for _ in range(3)]
    year = list(months_between(Month(2025, 1), Month(2025, 12)))
    for month in year:
        add_movement(engine, organizations[0], 100, f"{month}-10T10:00")
        settle(engine, month)
    assert len(ledger(engine)) == 12 * 3
    again = [settle(engine, month) for month in year]
    assert all(result.changed_nothing for result in again)
    assert [result.rows for result in again] == [0] * 12
    assert len(ledger(engine)) == 12 * 3


def test_a_month_has_one_settlement_and_as_many_adjustments_as_it_takes(engine: Engine) -> None:
    organization = add_organization(engine)
    for amount in (100, 10, 1):
        add_movement(engine, organization, amount, "2026-03-10T10:00")
        settle(engine)
    entries = ledger(engine, "sequence", "captures", "reason")
    assert entries == [(0, 100, None), (1, 10, "recomputed minus posted"), (2, 1, "recomputed minus posted")]
    assert settle(engine).changed_nothing
    assert "ledger_entry_pkey" in str(objection(lambda: post(engine, organization_id=str(organization))))


def test_an_organization_that_is_listed_twice_in_a_pass_is_settled_once(engine: Engine) -> None:
    seven, eight = (add_organization(engine) for _ in range(2))
    for organization in (seven, eight):
        add_movement(engine, organization, 100, "2026-03-10T10:00")
    settlement, _ = begin_or_join(engine, MARCH)
    plan(engine, settlement, 20_000)
    execute(
        engine,
        "INSERT INTO settlement_chunk (month, pass, origin_month, low_id, high_id) VALUES (:m, 1, :m, :id, :id)",
        m=MARCH.first_day,
        id=eight,
    )
    settle(engine)
    assert ledger(engine, "organization_id", "sequence", "captures") == [(seven, 0, 100), (eight, 0, 100)]


@pytest.mark.parametrize("column", KEY)
def test_no_column_of_the_settlement_key_may_be_empty(engine: Engine, column: str) -> None:
    assert f'null value in column "{column}"' in str(objection(lambda: post(engine, **{column: "NULL"})))


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


def test_the_commission_is_taken_from_the_ticket_and_not_from_the_fees_on_it(engine: Engine) -> None:
    organization = add_organization(engine)
    add_movement(engine, organization, 500, "2026-03-10T10:00", commission_rate_bps=300, commission_tax_bps=0)
    add_movement(engine, organization, 10, "2026-03-10T10:00", kind="MANUAL", reason="service fee", **KEPT)
    add_movement(engine, organization, -3, "2026-03-10T10:00", kind="FEE", reason="bank", **KEPT)
    settle(engine)
    assert ledger(engine, "captures", "fees", "commission", "net") == [(500, 7, 15, 492)]


def test_commission_stands_where_the_commission_belongs_and_net_where_the_net_does(engine: Engine) -> None:
    add_movement(engine, add_organization(engine), 100_000, "2026-03-10T10:00", commission_tax_bps=0)
    settle(engine)
    assert ledger(engine, "captures", "commission", "commission_tax", "net") == [(100_000, 10_000, 0, 90_000)]


def test_currencies_are_never_netted_against_each_other(engine: Engine) -> None:
    organization = add_organization(engine)
    add_movement(engine, organization, -5_000, "2026-03-10T10:00", kind="MANUAL", reason="loan", **KEPT)
    add_movement(engine, organization, 8_000, "2026-03-10T10:00", currency="USD", **KEPT)
    settle(engine)
    assert ledger(engine, "currency", "sequence", "net") == [("EUR", 0, -5_000), ("USD", 0, 8_000)]
