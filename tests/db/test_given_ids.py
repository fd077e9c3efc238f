"""Organizations whose id was given instead of drawn, as a copy from another system does: whatever it is, they count."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Engine

from tests.support.audited import broken
from tests.support.books import JANUARY, settle_and_close
from tests.support.payable import request, rows
from tests.support.rows import add_movement, add_organization
from tests.support.settled import settle
from tests.support.sql_statements import execute
from tests.support.statements import state


@pytest.mark.parametrize("given", [0, -5])
def test_an_organization_with_any_id_is_settled_paid_and_stated(engine: Engine, tmp_path: Path, given: int) -> None:
    for organization in (add_organization(engine, id=given), add_organization(engine)):
        add_movement(engine, organization, 100_000, "2026-01-10T10:00")
    settle_and_close(engine, JANUARY)
    assert request(engine, JANUARY).requested == 2
    assert state(engine, tmp_path, JANUARY).statements == 2
    assert rows(engine, "SELECT month FROM settlement_period WHERE paid_at IS NOT NULL") == [(JANUARY.first_day,)]


def test_the_audit_asks_about_an_organization_with_any_id(engine: Engine) -> None:
    organization = add_organization(engine, id=-5, external_ref="hall")
    add_movement(engine, organization, 100, "2026-01-10T10:00")
    settle(engine, JANUARY)
    execute(
        engine,
        """
        INSERT INTO ledger_entry (organization_id, month, currency, origin_month, sequence, captures, refunds,
            chargebacks, fees, commission, commission_tax, net, settlement_pass)
        VALUES (-5, '2026-01-01', 'EUR', '2026-01-01', 1, 5, 0, 0, 0, 0, 0, 5, 1)
        """,
    )
    assert broken(engine)["ledger_reconciles"] == ["2026-01 hall EUR posted 93, recomputed 88"]
