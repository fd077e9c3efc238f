"""A month that is settled again, or twice at once: every amount is posted once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import Engine, event

from tests.support.rows import add_movement, add_organization
from tests.support.settled import MARCH, NOW, ledger, settle
from tests.support.sql_statements import execute, objection, post
from ticketflow_orch.migrations.ledger_key import KEY
from ticketflow_orch.months import Month, months_between
from ticketflow_orch.settlement.passes import begin_or_join, plan


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
