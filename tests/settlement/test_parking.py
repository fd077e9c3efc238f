"""Parking: what one organization's data can cost, how it is found among the others, and how it comes back."""

from __future__ import annotations

import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.exc import ProgrammingError

from tests.support.rows import add_movement, add_organization, add_void
from tests.support.sessions import becomes
from tests.support.settled import MARCH, ledger, settle
from tests.support.sql_statements import execute
from ticketflow_orch.periods.state import period_state
from ticketflow_orch.settlement import IncompleteSettlementError, invariants
from ticketflow_orch.settlement.passes import begin_or_join, give_up, plan

POISON = 2**62


def poison(engine: Engine, organization: int) -> list[int]:
    """Movements whose sum no column can hold."""
    return [add_movement(engine, organization, POISON, "2026-03-10T10:00") for _ in range(3)]


@pytest.mark.every_server
def test_one_poisoned_organization_in_20_000_costs_a_few_transactions_and_nobody_else(engine: Engine) -> None:
    fill(engine, 20_000)
    poisonous = poison(engine, 12_345)
    seen: Counter[str] = Counter()

    @event.listens_for(engine, "commit")
    @event.listens_for(engine, "rollback")
    def count_transactions(connection: Any) -> None:
        seen["transactions"] += 1

    result = settle(engine, workers=1)
    halvings = math.ceil(math.log2(20_000))
    # Each halving is a chunk that fails, its split and a half that succeeds; the rest is the pass itself.
    assert seen["transactions"] <= 3 * halvings + 30
    assert result.rows_new == 19_999
    assert result.chunks in {halvings, halvings + 1}
    assert [(parked.external_ref, parked.month) for parked in result.parked] == [("bulk-12345", MARCH)]
    assert "bigint out of range" in result.parked[0].why
    with engine.connect() as connection:
        assert period_state(connection, MARCH) == "SETTLED"
        assert [breach.organization for breach in invariants.parked_in(connection, MARCH).examples] == ["bulk-12345"]
        assert invariants.organizations_without_row(connection, MARCH).count == 0
        assert invariants.dishonest_organizations(connection, MARCH).count == 0
    for movement in poisonous[:2]:
        add_void(engine, movement)
    corrected = settle(engine)
    assert (corrected.rows_new, corrected.rows_existing, corrected.parked) == (1, 0, ())
    with engine.connect() as connection:
        assert invariants.parked_in(connection, MARCH).count == 0
        total = connection.execute(text("SELECT sum(captures) FROM ledger_entry")).scalar_one()
    assert total == 20_000 * 100 + POISON


def fill(engine: Engine, organizations: int) -> None:
    """Organizations with a capture of 100 in March each."""
    execute(
        engine,
        """
        INSERT INTO organization (id, external_ref, name, timezone, currency, commission_rate_bps, commission_tax_bps,
            joined_on)
        SELECT id, 'bulk-' || id, 'bulk', 'Europe/Madrid', 'EUR', 1000, 2000, '2020-01-01'
        FROM generate_series(1, CAST(:count AS integer)) AS id
        """,
        count=organizations,
    )
    execute(
        engine,
        """
        INSERT INTO money_movement (external_ref, organization_id, kind, currency, amount, commission_rate_bps,
            commission_tax_bps, occurred_at)
        SELECT 'bulk-' || id, id, 'CAPTURE', 'EUR', 100, 1000, 2000, '2026-03-10 10:00Z' FROM organization
        """,
    )


def test_more_poisoned_organizations_than_may_be_parked_leave_the_month_open(engine: Engine) -> None:
    organizations = [add_organization(engine, external_ref=f"theatre {number}") for number in range(6)]
    for organization in organizations[1:4]:
        poison(engine, organization)
    for _ in range(2):
        refused = "2 organizations are parked in 2026-03 and theatre 3 fails too .*out of range.*PARKED_LIMIT"
        with pytest.raises(IncompleteSettlementError, match=refused):
            settle(engine, parked_limit=2, chunk_size=2, workers=1)
        with engine.connect() as connection:
            assert period_state(connection, MARCH) == "OPEN"
    result = settle(engine, parked_limit=3)
    assert [parked.external_ref for parked in result.parked] == ["theatre 1", "theatre 2", "theatre 3"]
    assert len(ledger(engine)) == 3


def test_a_month_that_failed_on_too_many_sees_what_was_mended_afterwards(engine: Engine) -> None:
    good, bad = add_organization(engine), add_organization(engine)
    add_movement(engine, good, 100, "2026-03-10T10:00")
    poisonous = poison(engine, bad)
    with pytest.raises(IncompleteSettlementError):
        settle(engine, parked_limit=0)
    for movement in poisonous:
        add_void(engine, movement)
    result = settle(engine, parked_limit=0)
    assert not result.joined
    assert sorted(ledger(engine, "organization_id", "sequence", "captures")) == [(good, 0, 100), (bad, 0, 0)]
    with engine.connect() as connection:
        assert period_state(connection, MARCH) == "SETTLED"
        assert invariants.dishonest_organizations(connection, MARCH).count == 0


def test_the_totals_show_what_a_pass_posted_that_was_given_up(engine: Engine) -> None:
    good, bad = add_organization(engine), add_organization(engine)
    add_movement(engine, good, 100, "2026-03-10T10:00")
    settle(engine)
    add_movement(engine, good, 50, "2026-03-11T10:00")
    poisonous = poison(engine, bad)
    with pytest.raises(IncompleteSettlementError):
        settle(engine, parked_limit=0, chunk_size=1, workers=1)
    for movement in poisonous:
        add_void(engine, movement)
    assert settle(engine).changed_nothing
    with engine.connect() as connection:
        assert connection.execute(text("SELECT captures FROM settlement_total")).scalar_one() == 150


def test_a_pass_is_given_up_only_when_no_chunk_of_it_is_in_hand(engine: Engine) -> None:
    for _ in range(4):
        add_organization(engine)
    settlement, _ = begin_or_join(engine, MARCH)
    plan(engine, settlement, chunk_size=2)
    with ThreadPoolExecutor(1) as pool, engine.connect() as worker:
        worker.execute(text("SELECT FROM settlement_chunk FOR UPDATE"))
        given_up = pool.submit(give_up, engine, settlement, "too many fail")
        assert becomes(lambda: waits_for_a_lock(engine), unless=given_up.done)
        # The worker ends with one chunk done and the other one split.
        worker.execute(text("UPDATE settlement_chunk SET state = 'DONE', finished_at = now() WHERE low_id = 0"))
        worker.execute(text("UPDATE settlement_chunk SET high_id = 3 WHERE low_id = 3"))
        worker.execute(
            text("INSERT INTO settlement_chunk (month, pass, origin_month, low_id) VALUES (:month, 1, :month, 4)"),
            {"month": MARCH.first_day},
        )
        worker.commit()
        given_up.result(timeout=60)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT low_id, state FROM settlement_chunk")).all() == [(0, "DONE")]
        assert connection.execute(text("SELECT state FROM settlement_pass")).scalar_one() == "GIVEN_UP"


def waits_for_a_lock(engine: Engine) -> bool:
    with engine.connect() as connection:
        waiting = text("SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
        return connection.execute(waiting).first() is not None


def test_an_organization_that_is_poisoned_after_it_was_settled_keeps_its_row(engine: Engine) -> None:
    organization = add_organization(engine)
    add_movement(engine, organization, 100, "2026-03-10T10:00")
    settle(engine)
    late = poison(engine, organization)
    assert len(settle(engine).parked) == 1
    assert [row[2] for row in ledger(engine, "organization_id", "sequence", "captures")] == [100]
    for movement in late:
        add_void(engine, movement)
    assert settle(engine).parked == ()
    assert settle(engine).changed_nothing
    assert [row[2] for row in ledger(engine, "organization_id", "sequence", "captures")] == [100]


def test_a_fault_that_is_not_the_data_s_own_stops_the_run_and_parks_nobody(engine: Engine) -> None:
    for _ in range(4):
        add_organization(engine)
    execute(engine, "ALTER TABLE ledger_entry RENAME TO mislaid")
    with pytest.raises(ProgrammingError, match='relation "ledger_entry" does not exist'):
        settle(engine)
    execute(engine, "ALTER TABLE mislaid RENAME TO ledger_entry")
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM parked_organization")).scalar_one() == 0
    assert settle(engine).rows_new == 4
