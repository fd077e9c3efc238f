"""A thousand movements come late, for months settled, settled again and closed: none is lost, none counts twice."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest
from sqlalchemy import Engine

from tests.support.oracle import AMOUNTS, Business, Key, Movement, amounts, posted, record, without_zeros, write
from tests.support.rows import add_organization, instant
from tests.support.settled import close_month, ledger, settle
from ticketflow_orch.months import Month, months_between
from ticketflow_orch.settlement import invariants

FIRST, LAST = Month(2026, 1), Month(2026, 4)
MONTHS = tuple(months_between(FIRST, LAST))
ZONES = ("Pacific/Kiritimati", "Asia/Kathmandu", "Europe/Madrid", "America/St_Johns", "Pacific/Pago_Pago")
LATE = int(os.environ.get("CHAOS_MOVEMENTS", "1000"))
WRITERS, SECONDS = 4, float(os.environ.get("CHAOS_SECONDS", "3"))
SEED = int(os.environ["CHAOS_SEED"])


@pytest.fixture
def zones(engine: Engine) -> dict[int, str]:
    """Organizations, with their time zones and in several currencies."""
    currencies = ("EUR", "JPY", "KWD")
    return {
        add_organization(engine, timezone=ZONES[number % 5], currency=currencies[number % 3]): ZONES[number % 5]
        for number in range(15)
    }


@pytest.mark.parametrize("seed", [SEED])
def test_the_ledger_is_what_all_movements_come_to_however_late_they_come(
    engine: Engine, zones: dict[int, str], seed: int
) -> None:
    random = Random(seed)
    business = work(random, zones)
    movements = business.movements(200)
    record(engine, movements)
    for month in MONTHS:
        settle(engine, month)
    for _ in range(10):
        late = business.movements(LATE // 10)
        record(engine, late)
        movements += late
        settle(engine, random.choice(MONTHS), chunk_size=random.choice([1, 4, 100]))
    for month in MONTHS:
        settle(engine, month)
    assert settled(engine) == expected(movements, zones), f"CHAOS_SEED={seed}"
    assert_every_organization_has_its_row(engine, MONTHS)
    assert all(settle(engine, month).changed_nothing for month in MONTHS)


@pytest.mark.parametrize("seed", [SEED])
def test_the_first_open_month_takes_in_what_comes_late_for_all_closed_ones(
    engine: Engine, zones: dict[int, str], seed: int
) -> None:
    random = Random(seed)
    business = work(random, zones)
    movements = business.movements(200)
    record(engine, movements)
    for month in MONTHS:
        settle(engine, month)
    closed: list[Month] = []
    for month in MONTHS[:-1]:
        late, later = business.movements(LATE // 6), business.movements(LATE // 6)
        record(engine, late)
        close_month(engine, month)
        closed.append(month)
        before = ledger_of(engine, closed)
        record(engine, later)
        movements += late + later
        settle(engine, random.choice(MONTHS), chunk_size=random.choice([1, 4, 100]))
        settle(engine, month.next(), chunk_size=random.choice([1, 4, 100]))
        assert ledger_of(engine, closed) == before
    settle(engine, LAST)
    assert settled(engine) == expected(movements, zones), f"CHAOS_SEED={seed}"
    assert settle(engine, LAST).changed_nothing


@pytest.mark.parametrize("seed", [SEED])
def test_each_pass_sees_what_was_recorded_before_its_cutoff_while_others_go_on_writing(
    engine: Engine, zones: dict[int, str], seed: int
) -> None:
    over = threading.Event()

    def write_on(number: int) -> list[Movement]:
        random = Random(seed + number)
        business = work(random, zones, ids=itertools.count(10**6 * (number + 1)))
        written: list[Movement] = []
        while not over.is_set():
            with engine.begin() as connection:
                written += (batch := business.movements(random.choice([1, 1, 5, 50])))
                write(connection, batch)
                over.wait(random.choice([0, 0.01, 0.1]))
        return written

    passes = 0
    with ThreadPoolExecutor(WRITERS) as threads:
        writers = [threads.submit(write_on, number) for number in range(WRITERS)]
        try:
            until = time.monotonic() + SECONDS
            # However slow the machine, each month at least and one of them again.
            while passes <= len(MONTHS) or time.monotonic() < until:
                settle(engine, MONTHS[passes % len(MONTHS)], workers=1)
                passes += 1
                assert_every_organization_has_its_row(engine, MONTHS[:passes])
        finally:
            over.set()
    movements = [movement for writer in writers for movement in writer.result()]
    for month in MONTHS:
        settle(engine, month)
    assert settled(engine) == expected(movements, zones), f"CHAOS_SEED={seed}"


def work(random: Random, zones: dict[int, str], ids: Iterable[int] | None = None) -> Business:
    """Movements of the organizations, over the months and a little beyond."""
    return Business(
        random, list(zones), since=instant("2025-12-31T00:00"), until=instant("2026-05-02T00:00"), largest=10**12,
        ids=ids,
    )  # fmt: skip


def settled(engine: Engine) -> dict[Key, tuple[int, ...]]:
    return of_the_months(posted(engine))


def expected(movements: list[Movement], zones: dict[int, str]) -> dict[Key, tuple[int, ...]]:
    return of_the_months(amounts(movements, zones))


def of_the_months(sums: dict[Key, tuple[int, ...]]) -> dict[Key, tuple[int, ...]]:
    keys = {str(month) for month in MONTHS}
    return {key: columns for key, columns in without_zeros(sums).items() if key[1] in keys}


def ledger_of(engine: Engine, months: list[Month]) -> list[tuple[Any, ...]]:
    """All that was posted in the months, to the byte."""
    days = {month.first_day for month in months}
    columns = ("organization_id", "currency", "month", "origin_month", "sequence", "posted_at", *AMOUNTS)
    return sorted(row for row in ledger(engine, *columns) if row[2] in days)


def assert_every_organization_has_its_row(engine: Engine, months: Sequence[Month]) -> None:
    """Each has one in each month, and it is right as of the month's last cutoff."""
    with engine.connect() as connection:
        for month in months:
            assert invariants.organizations_without_row(connection, month).count == 0
            assert invariants.dishonest_organizations(connection, month).examples == ()
