"""Amounts to the minor unit: lines, rates, rounding, and the instants at which one month becomes the next."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from random import Random

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from sqlalchemy import Engine, create_engine
from sqlalchemy.engine import URL

from tests.support.oracle import Business, Movement, amounts, posted, record, without_zeros
from tests.support.rows import add_movement, add_organization, instant
from tests.support.settled import KEPT, MARCH, ledger, settle
from ticketflow_orch.months import Month

EXAMPLES = int(os.environ.get("CHAOS_EXAMPLES", "30"))


def odd_months() -> Iterator[Month]:
    """A month of its own for each example, so that each sees a first pass; none has a neighbour."""
    return (Month(year, number) for year in itertools.count(1971) for number in (1, 3, 5, 7, 9, 11))


months, refunded = odd_months(), odd_months()
ids = itertools.count(1_000_000)


def randomly(count: int) -> examples:
    # One database serves all examples of a test, however slow the machine is today.
    waived = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    return examples(max_examples=count, deadline=None, suppress_health_check=waived)


def commission(engine: Engine) -> tuple[int, int, int]:
    """Commission, tax on it and net of all entries."""
    rows = ledger(engine, "commission", "commission_tax", "net")
    return sum(row[0] for row in rows), sum(row[1] for row in rows), sum(row[2] for row in rows)


@randomly(EXAMPLES)
@given(random=st.randoms(use_true_random=False), count=st.integers(1, 50), passes=st.integers(1, 2))
def test_the_ledger_is_what_the_movements_come_to(engine: Engine, random: Random, count: int, passes: int) -> None:
    month = next(months)
    since = instant(f"{month.first_day}T00:00") - timedelta(days=1)
    zones = {
        add_organization(engine, timezone=timezone, joined_on=month.first_day, left_on=month.first_day): timezone
        for timezone in ("Europe/Madrid", "Pacific/Auckland", "America/Caracas")
    }
    business = Business(
        random, list(zones), since=since, until=since + timedelta(days=33), largest=10**15,
        ids=ids,
    )  # fmt: skip
    movements: list[Movement] = []
    for _ in range(passes):
        batch = business.movements(count)
        record(engine, batch)
        movements += batch
        settle(engine, month)
    expected = {key: sums for key, sums in amounts(movements, zones).items() if key[1] == str(month)}
    actual = {key: sums for key, sums in posted(engine).items() if key[1] == str(month)}
    assert without_zeros(actual) == without_zeros(expected)
    assert actual.keys() == expected.keys() | {(organization, str(month), "EUR") for organization in zones}
    for captures, refunds, chargebacks, fees, commission, tax, net in actual.values():
        assert commission + tax + net == captures + refunds + chargebacks + fees


SALE = st.tuples(st.integers(1, 200) | st.integers(1, 2**52), st.integers(0, 10_000), st.integers(0, 10_000))


@randomly(EXAMPLES // 3)
@given(sales=st.lists(SALE, min_size=1, max_size=30))
def test_a_refund_of_the_whole_is_the_capture_with_the_sign_turned(
    engine: Engine, sales: list[tuple[int, int, int]]
) -> None:
    month, later = next(refunded), next(refunded)
    captures = [
        Movement(next(ids), add_organization(engine), "CAPTURE", "EUR", *sale, instant(f"{month}-10T10:00"))
        for sale in sales
    ]
    refunds = [
        replace(
            capture, id=next(ids), kind="REFUND", amount=-capture.amount, reverses_id=capture.id,
            occurred_at=instant(f"{later}-10T10:00"),
        )
        for capture in captures
    ]  # fmt: skip
    record(engine, captures + refunds)
    settle(engine, month)
    settle(engine, later)
    sums = posted(engine)
    for capture in captures:
        gross, _, _, _, taken, tax, net = sums[capture.organization_id, str(month), "EUR"]
        assert taken == half_up_of(gross * capture.commission_rate_bps)
        assert tax == half_up_of(taken * capture.commission_tax_bps)
        assert 0 <= tax <= taken <= gross == taken + tax + net
        assert sums[capture.organization_id, str(later), "EUR"] == (0, -gross, 0, 0, -taken, -tax, -net)


def half_up_of(ten_thousandths: int) -> int:
    return (ten_thousandths + 5_000) // 10_000


HALVES = [(4, 0, 0), (5, 1, 1), (14, 1, 1), (15, 2, 1), (25, 3, 2), (10**17 + 5, 10**16 + 1, 5 * 10**15 + 1)]


@pytest.mark.parametrize(("gross", "at_10_percent", "half_of_that"), HALVES)
def test_a_half_is_rounded_away_from_zero_on_either_side(
    engine: Engine, gross: int, at_10_percent: int, half_of_that: int
) -> None:
    rates = {"commission_rate_bps": 1000, "commission_tax_bps": 5000}
    organization = add_organization(engine)
    capture = add_movement(engine, organization, gross, "2026-02-10T10:00", **rates)
    add_movement(engine, organization, -gross, "2026-03-10T10:00", kind="REFUND", reverses_id=capture, **rates)
    for month in (Month(2026, 2), MARCH):
        settle(engine, month)
    assert [row[1:] for row in ledger(engine, "month", "commission", "commission_tax")] == [
        (at_10_percent, half_of_that),
        (-at_10_percent, -half_of_that),
    ]


def test_each_rate_of_a_month_is_a_line_that_is_rounded_by_itself(engine: Engine) -> None:
    organization = add_organization(engine)
    for amount, rate, tax in ((3, 1000, 0), (2, 1000, 0), (5, 1500, 0), (5, 1500, 2000), (5, 1500, 2000)):
        add_movement(engine, organization, amount, "2026-03-10T10:00", commission_rate_bps=rate, commission_tax_bps=tax)
    settle(engine)
    # 0.5 is 1; 0.75 is 1; 1.5 is 2, and 20 % of 2 is 0.
    assert commission(engine) == (4, 0, 16)


def test_at_rate_zero_nothing_is_taken(engine: Engine) -> None:
    organization = add_organization(engine)
    add_movement(engine, organization, 12_345, "2026-03-10T10:00", commission_rate_bps=0)
    settle(engine)
    assert commission(engine) == (0, 0, 12_345)


def test_at_the_highest_rates_commission_and_tax_are_the_gross_and_as_much_again(engine: Engine) -> None:
    organization = add_organization(engine)
    add_movement(engine, organization, 2**61, "2026-03-10T10:00", commission_rate_bps=10_000, commission_tax_bps=10_000)
    settle(engine)
    assert commission(engine) == (2**61, 2**61, -(2**61))


EDGES = {
    "the first zone on earth": ("Pacific/Kiritimati", "2026-04-30T10:00", Month(2026, 5)),
    "the last zone on earth": ("Pacific/Pago_Pago", "2026-05-01T11:00", Month(2026, 5)),
    "Madrid in winter": ("Europe/Madrid", "2026-02-28T23:00", Month(2026, 3)),
    "Madrid after the clocks went forward": ("Europe/Madrid", "2026-03-31T22:00", Month(2026, 4)),
    "Madrid in summer": ("Europe/Madrid", "2025-09-30T22:00", Month(2025, 10)),
    "Madrid after the clocks went back": ("Europe/Madrid", "2025-10-31T23:00", Month(2025, 11)),
    "the end of a leap day": ("Europe/Madrid", "2024-02-29T23:00", Month(2024, 3)),
    "the year's end": ("Asia/Kathmandu", "2025-12-31T18:15", Month(2026, 1)),
    "the first of two midnights": ("America/Havana", "2020-11-01T04:00", Month(2020, 11)),
}


@pytest.mark.every_server
@pytest.mark.parametrize(("timezone", "edge", "month"), EDGES.values(), ids=EDGES)
def test_a_month_begins_with_its_first_instant_and_ends_before_the_next(
    engine: Engine, timezone: str, edge: str, month: Month
) -> None:
    organization = add_organization(engine, timezone=timezone)
    for amount, microseconds in ((1, -1), (10, 0), (100, 1)):
        moment = instant(edge) + timedelta(microseconds=microseconds)
        add_movement(engine, organization, amount, moment.isoformat())
    for number in (month.previous(), month):
        settle(engine, number)
    assert ledger(engine, "month", "captures", "net") == [
        (month.previous().first_day, 1, 1),
        (month.first_day, 110, 110 - 11 - 2),
    ]


def test_both_hours_between_two_midnights_belong_to_the_new_month(engine: Engine) -> None:
    organization = add_organization(engine, timezone="America/Havana")
    # 00:30 on 1 November in summer time, then again at 00:30 in winter time.
    for moment in ("2020-11-01T04:30", "2020-11-01T05:30"):
        add_movement(engine, organization, 100, moment)
    for month in (Month(2020, 10), Month(2020, 11)):
        settle(engine, month)
    assert [row[2] for row in ledger(engine, "month", "sequence", "captures")] == [0, 200]


@pytest.mark.parametrize("session_zone", ["Pacific/Kiritimati", "Pacific/Pago_Pago"])
def test_the_zone_of_the_session_moves_no_month(url: URL, session_zone: str) -> None:
    engine = create_engine(
        url.set(drivername="postgresql+psycopg"), connect_args={"options": f"-c timezone={session_zone}"}
    )
    organization = add_organization(engine)
    add_movement(engine, organization, 100, "2026-03-31T21:59:59.999999")
    add_movement(engine, organization, 7, "2026-03-31T22:00")
    settle(engine)
    assert ledger(engine, "month", "origin_month", "captures") == [(MARCH.first_day, MARCH.first_day, 100)]
    engine.dispose()


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
