"""The role of runs may do what the code does, and nothing that would let a fault in it rewrite money."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import ProgrammingError

from tests.rows import add_movement, add_organization
from tests.test_settlement import MARCH, settle
from ticketflow_orch import audit
from ticketflow_orch.database import connect_engine

ROLES = Path(__file__).resolve().parents[1] / "deploy" / "roles.sql"


@pytest.fixture
def restricted(engine: Engine, url: URL) -> Iterator[Engine]:
    """An engine whose sessions carry the role of runs."""
    with engine.begin() as connection:
        connection.exec_driver_sql(ROLES.read_text("utf-8"))
    restricted = connect_engine(url.update_query_dict({"options": "-c role=ticketflow_run"}), "pytest restricted")
    yield restricted
    restricted.dispose()


@pytest.mark.every_server
def test_the_role_of_runs_settles_and_audits_a_month(engine: Engine, restricted: Engine) -> None:
    organization = add_organization(engine)
    add_movement(engine, organization, 100_000, "2026-03-10T10:00")
    for _ in range(3):
        add_movement(engine, add_organization(engine), 2**62, "2026-03-10T10:00")
    poisoned = add_organization(engine)
    for _ in range(3):
        add_movement(engine, poisoned, 2**62, "2026-03-10T10:00")
    assert len(settle(restricted).parked) == 1
    add_movement(engine, organization, 100, "2026-03-11T10:00")
    assert settle(restricted).rows_adjusted == 1
    with restricted.connect() as connection:
        assert audit.dishonest_organizations(connection, MARCH).count == 0
        assert audit.missing_guards(connection) == ()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE ledger_entry SET net = 0",
        "DELETE FROM ledger_entry",
        "TRUNCATE ledger_entry",
        "ALTER TABLE ledger_entry DISABLE TRIGGER ALL",
        "INSERT INTO money_movement (amount) VALUES (1)",
        "UPDATE organization SET commission_rate_bps = 0",
        "DELETE FROM settlement_period",
        "UPDATE settlement_window SET ends_at = starts_at",
        "SET session_replication_role = replica",
    ],
)
def test_the_role_of_runs_cannot_rewrite_money(restricted: Engine, statement: str) -> None:
    with pytest.raises(ProgrammingError, match=r"permission denied|must be owner"), restricted.begin() as connection:
        connection.execute(text(statement))
