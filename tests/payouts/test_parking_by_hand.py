"""Parking by hand: a person stops an organization's balances and payouts, and its ledger goes on."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, text

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
    settle_and_close,
)
from tests.support.rows import add_movement, add_organization, add_void
from tests.support.settled import ledger, settle
from tests.support.sql_statements import execute, refusal
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.months import Month
from ticketflow_orch.payouts.parking import park, parked_by_hand, unpark
from ticketflow_orch.reports.explain import explain
from ticketflow_orch.settlement import invariants

FREE = {"commission_rate_bps": 0, "commission_tax_bps": 0}


@pytest.fixture
def theatre(engine: Engine) -> int:
    """An organization that sells for 100 each month, beside another one."""
    organizations = [add_organization(engine, external_ref=name) for name in ("theatre", "other")]
    for organization in organizations:
        for month in ("01", "02", "03", "04"):
            add_movement(engine, organization, 100, f"2026-{month}-10T10:00", **FREE)
    return organizations[0]


def test_an_organization_that_is_parked_is_settled_and_not_balanced_and_then_catches_up_in_one_balance(
    engine: Engine, theatre: int
) -> None:
    settle_and_close(engine, JANUARY)
    park(engine, "theatre", "disputed contract", "ana", FIRST)
    settle_and_close(engine, FEBRUARY, MARCH)
    own = f"organization_id = {theatre}"
    assert balances(engine, "month", where=own) == [(JANUARY.first_day,)]
    assert len(balances(engine)) == 4
    assert [net for organization, _, net in ledger(engine, "organization_id", "month", "net")] == [100] * 6
    assert breaches(engine) == []
    unpark(engine, "theatre", "eva")
    settle_and_close(engine, APRIL)
    assert balances(engine, "month", "previous_month", "opening", "net", "payable", where=own)[1:] == [
        (APRIL.first_day, JANUARY.first_day, 0, 300, 300)
    ]
    assert breaches(engine) == []


def test_what_comes_back_or_was_brought_along_waits_until_the_parking_ends(engine: Engine, theatre: int) -> None:
    settle_and_close(engine, JANUARY)
    add_payout(engine, theatre, JANUARY, "REJECTED")
    add_opening_balance(engine, theatre, 7, "USD")
    park(engine, "theatre", "disputed contract", "ana", FIRST)
    settle_and_close(engine, FEBRUARY)
    unpark(engine, "theatre", "ana")
    settle_and_close(engine, MARCH)
    assert balances(engine, "currency", "opening", "net", "returned", where=f"organization_id = {theatre}")[1:] == [
        ("EUR", 0, 200, 100), ("USD", 7, 0, 0),
    ]  # fmt: skip


def test_a_parking_begins_with_the_first_month_that_is_not_closed(engine: Engine, theatre: int) -> None:
    assert park(engine, "theatre", "disputed", "ana", FIRST).month == FIRST
    settle_and_close(engine, JANUARY)
    assert park(engine, "other", "disputed", "ana", FIRST).month == FEBRUARY
    unpark(engine, "other", "ana")
    settle(engine, FEBRUARY)
    execute(engine, "UPDATE settlement_period SET state = 'CLOSING' WHERE month = '2026-02-01'")
    assert park(engine, "other", "disputed", "ana", FIRST).month == MARCH
    assert [parked.external_ref for parked in close(engine, FEBRUARY).parked] == ["theatre"]


def test_who_parked_and_who_ended_it_is_on_record_with_the_database_role(engine: Engine, theatre: int) -> None:
    park(engine, "theatre", "  disputed contract ", "ana", FIRST)
    with engine.connect() as connection:
        role = connection.execute(text("SELECT session_user")).scalar_one()
        [parking] = parked_by_hand(connection)
        assert explain(connection, "theatre", MARCH).parked == "disputed contract"
    assert (parking.reason, parking.parked_by) == ("disputed contract", f"ana (role {role})")
    unpark(engine, "theatre", "eva")
    with engine.connect() as connection:
        assert parked_by_hand(connection) == ()
        resolved = connection.execute(text("SELECT resolved_by, resolved_at IS NOT NULL FROM parked_organization"))
        assert tuple(resolved.one()) == (f"eva (role {role})", True)


def test_a_parking_that_makes_no_sense_is_refused(engine: Engine, theatre: int) -> None:
    with pytest.raises(TicketflowError, match="There is no organization 'nobody'"):
        park(engine, "nobody", "disputed", "ana", FIRST)
    with pytest.raises(TicketflowError, match="Say why 'theatre' is parked"):
        park(engine, "theatre", " ", "ana", FIRST)
    with pytest.raises(TicketflowError, match="'theatre' is not parked by hand"):
        unpark(engine, "theatre", "ana")
    park(engine, "theatre", "disputed", "ana", FIRST)
    with pytest.raises(TicketflowError, match="'theatre' is parked by hand already"):
        park(engine, "theatre", "disputed again", "eva", FIRST)
    again = "INSERT INTO parked_organization (organization_id, month, reason) VALUES (:id, '2026-09-01', 'again')"
    assert "parked_organization_by_hand" in refusal(engine, again, id=theatre)


def test_a_settlement_that_fails_on_a_parked_organization_does_not_end_its_parking(
    engine: Engine, theatre: int
) -> None:
    park(engine, "theatre", "disputed", "ana", MARCH)
    poison = [add_movement(engine, theatre, 2**62, "2026-03-11T10:00", **FREE) for _ in range(2)]
    [parked] = settle(engine).parked
    assert "out of range" in parked.why
    with engine.connect() as connection:
        assert invariants.parked_in(connection, MARCH).count == 2
    add_void(engine, poison[0])
    assert settle(engine).parked == ()
    with engine.connect() as connection:
        assert [parking.reason for parking in parked_by_hand(connection)] == ["disputed"]
        assert invariants.parked_in(connection, MARCH).count == 1


def test_the_ledger_of_a_parked_organization_is_audited_like_any(engine: Engine, theatre: int) -> None:
    park(engine, "theatre", "disputed", "ana", MARCH)
    settle(engine)
    with engine.begin() as connection:
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        connection.execute(text("DELETE FROM ledger_entry WHERE organization_id = :id"), {"id": theatre})
    with engine.connect() as connection:
        assert invariants.organizations_without_row(connection, MARCH).count == 1
        assert invariants.dishonest_organizations(connection, MARCH).count == 1


def test_late_data_of_a_parked_organization_is_posted(engine: Engine, theatre: int) -> None:
    settle_and_close(engine, JANUARY)
    park(engine, "theatre", "disputed", "ana", FIRST)
    add_movement(engine, theatre, 5, "2026-01-11T10:00", **FREE)
    settle_and_close(engine, FEBRUARY)
    unpark(engine, "theatre", "ana")
    settle_and_close(engine, MARCH)
    assert balances(engine, "net", where=f"organization_id = {theatre} AND month = '2026-03-01'") == [(205,)]
    settle_and_close(engine, APRIL)
    settle(engine, Month(2026, 5))
    assert breaches(engine) == []
