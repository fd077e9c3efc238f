"""The role of runs may do what the code does, and nothing that would let a fault in it rewrite money."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import ProgrammingError

from tests.rows import add_event, add_movement, add_organization, add_reservation, instant
from tests.test_settlement import MARCH, settle
from ticketflow_orch import audit
from ticketflow_orch.alerts import Alert, alert_once
from ticketflow_orch.database import connect_engine, transaction
from ticketflow_orch.executions import sweep
from ticketflow_orch.firings import Firing
from ticketflow_orch.lifecycle import LifecycleRules, close_events, expire_reservations
from ticketflow_orch.reminders import ReminderRules, send_reminders
from ticketflow_orch.retention import RetentionRules, prune
from ticketflow_orch.scheduled_work import run_once

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


@pytest.mark.every_server
def test_the_role_of_runs_does_the_work_of_all_schedules(engine: Engine, restricted: Engine) -> None:
    at = instant("2026-06-01T12:00")
    evening = add_event(engine, add_organization(engine))
    add_reservation(engine, evening, payment_started_at=instant("2026-05-01T10:14"))
    add_reservation(engine, evening, public_ref="held")
    add_reservation(engine, evening, status="CONFIRMED", confirmed_at=instant("2026-05-01T10:14"))

    def work() -> dict[str, int]:
        expired = expire_reservations(restricted, LifecycleRules(at, "run"))
        assert (expired.reservations, expired.stuck) == (1, 1)
        reminded = send_reminders(restricted, ReminderRules(at, {"24h": timedelta(hours=24)}))
        assert reminded.queued + reminded.skipped == 1
        assert close_events(restricted, LifecycleRules(instant("2026-06-02T00:00"), "run")).events == 1
        return {}

    assert run_once(restricted, Firing("any", at, "run"), work).status == "DONE"
    with transaction(restricted) as connection:
        assert alert_once(connection, Alert("Any", "one", {}), at)
        assert sweep(connection) == ()
    with engine.begin() as connection:
        connection.execute(text("UPDATE job_firing SET fired_at = '2020-01-01Z'"))
    pruned = prune(restricted, RetentionRules(timedelta(days=90), ["any"]))
    assert (pruned.firings, pruned.claims) == (1, 1)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE ledger_entry SET net = 0",
        "DELETE FROM ledger_entry",
        "TRUNCATE ledger_entry",
        "ALTER TABLE ledger_entry DISABLE TRIGGER ALL",
        "INSERT INTO money_movement (amount) VALUES (1)",
        "UPDATE organization SET commission_rate_bps = 0",
        "UPDATE reservation SET quantity = 1",
        "UPDATE event SET ends_at = ends_at",
        "DELETE FROM reminder",
        "DELETE FROM alert",
        "DELETE FROM settlement_period",
        "UPDATE settlement_window SET ends_at = starts_at",
        "SET session_replication_role = replica",
    ],
)
def test_the_role_of_runs_cannot_rewrite_money(restricted: Engine, statement: str) -> None:
    with pytest.raises(ProgrammingError, match=r"permission denied|must be owner"), restricted.begin() as connection:
        connection.execute(text(statement))
