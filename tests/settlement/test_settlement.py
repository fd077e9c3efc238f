"""The monthly settlement, by its business rules."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from tests.support.rows import add_movement, add_organization, add_void, instant
from tests.support.settled import MARCH, ledger, settle, tamper
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.periods.state import settled_months
from ticketflow_orch.settlement import invariants


@pytest.mark.every_server
def test_a_month_is_posted_once_per_organization_and_currency(engine: Engine) -> None:
    paid, idle = add_organization(engine), add_organization(engine)
    add_movement(engine, paid, 100_000, "2026-03-10T10:00")
    add_movement(engine, paid, 5_000, "2026-03-10T10:00", currency="USD")
    result = settle(engine)
    assert ledger(engine) == [
        (paid, "EUR", 0, 100_000, 0, 10_000, 2_000, 88_000),
        (paid, "USD", 0, 5_000, 0, 500, 100, 4_400),
        (idle, "EUR", 0, 0, 0, 0, 0, 0),
    ]
    assert (result.rows_new, result.rows_adjusted, result.rows_existing) == (3, 0, 0)
    again = settle(engine)
    assert again.changed_nothing
    assert again.rows_existing == 0
    assert settle(engine, full=True).rows_existing == 3


def test_late_data_becomes_one_adjustment(engine: Engine) -> None:
    organization = add_organization(engine)
    movement = add_movement(engine, organization, 100_000, "2026-03-10T10:00")
    settle(engine)
    add_movement(engine, organization, 5_000, "2026-03-11T10:00")
    add_void(engine, movement)
    result = settle(engine)
    assert result.rows_adjusted == 1
    assert ledger(engine, "sequence", "captures", "net") == [(0, 100_000, 88_000), (1, -95_000, -83_600)]


def test_a_month_that_is_not_over_in_every_zone_is_refused(engine: Engine) -> None:
    add_organization(engine)
    add_organization(engine, timezone="Pacific/Pago_Pago")
    with pytest.raises(TicketflowError, match="2026-03 is not over in Pacific/Pago_Pago before 2026-04-01 13:00 "):
        settle(engine, now=instant("2026-04-01T10:59:59"))
    assert settle(engine, now=instant("2026-04-01T11:00:00")).rows_new == 2


def test_one_poisoned_organization_is_parked_and_the_others_are_settled(engine: Engine) -> None:
    organizations = [add_organization(engine) for _ in range(9)]
    poison = [add_movement(engine, organizations[6], 2**62, "2026-03-10T10:00") for _ in range(3)]
    result = settle(engine, chunk_size=4)
    assert result.rows_new == 8
    assert [parked.month for parked in result.parked] == [MARCH]
    assert "out of range" in result.parked[0].why
    for movement in poison[:2]:
        add_void(engine, movement)
    corrected = settle(engine)
    assert (corrected.rows_new, corrected.rows_existing, corrected.parked) == (1, 0, ())


@pytest.mark.every_server
def test_the_audit_names_what_was_tampered_with(engine: Engine) -> None:
    first, second = add_organization(engine), add_organization(engine)
    add_movement(engine, first, 33_333, "2026-03-10T10:00")
    settle(engine)
    add_movement(engine, first, 10, "2026-03-10T10:00")  # recorded after the cutoff: late, not dishonest
    with engine.connect() as connection:
        assert settled_months(connection) == (MARCH,)
        assert invariants.organizations_without_row(connection, MARCH).count == 0
        assert invariants.dishonest_organizations(connection, MARCH).count == 0
        assert invariants.rounding_residue(connection, MARCH) == {"EUR": "0.1"}
        assert invariants.missing_guards(connection) == ()
    tamper(engine, f"UPDATE ledger_entry SET captures = captures + 1, net = net + 1 WHERE organization_id = {first}")
    tamper(engine, f"DELETE FROM ledger_entry WHERE organization_id = {second}")
    tamper(engine, "ALTER TABLE ledger_entry DISABLE TRIGGER ledger_entry_append_only")
    with engine.connect() as connection:
        assert invariants.organizations_without_row(connection, MARCH).count == 1
        assert [breach.what for breach in invariants.dishonest_organizations(connection, MARCH).examples] == [
            "posted 29334, recomputed 29333"
        ]
        assert invariants.missing_guards(connection) == ("trigger ledger_entry_append_only is missing or switched off",)
