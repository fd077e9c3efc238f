"""How the ledger is read with two years in it: by its key, month by month, and never more than was asked for."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, event, text

from tests.conftest import TEMPLATE, fresh_database, run_sql
from tests.support.books import FEBRUARY, close
from tests.support.plans import ORGANIZATIONS, Node, add_entries_of_the_months_before, add_movements, plan_of, scans_of
from tests.support.rows import add_movement
from tests.support.settled import MARCH, settle
from tests.support.sql_statements import execute
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.reports.explain import explain
from ticketflow_orch.settlement.due import late_months
from ticketflow_orch.settlement.late_report import late_adjustments
from ticketflow_orch.statements.queries import read_movements, read_statements

pytestmark = pytest.mark.every_server

MONTHS = 24
ASKED = range(100, 120)


@pytest.fixture(scope="session")
def two_years(server: EmbeddedServer) -> str:
    """The name of a database with two years settled and closed, and March settled.

    What came late for both a closed month and March is not read yet.
    """
    name = f"template_two_years_{uuid.uuid4().hex[:8]}"
    run_sql(server.url(), f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
    engine = connect_engine(server.url(name), "pytest")
    fill(engine)
    engine.dispose()
    return name


@pytest.fixture
def years(server: EmbeddedServer, two_years: str) -> Iterator[Engine]:
    with fresh_database(server, two_years) as url:
        engine = connect_engine(url, "pytest", connections=20)
        yield engine
        engine.dispose()


def fill(engine: Engine) -> None:
    add_movements(engine, months=MONTHS)
    add_entries_of_the_months_before(engine, months=MONTHS)
    execute(
        engine,
        """
        INSERT INTO settlement_period (month, state, settled_at, settled_by, closed_at, closed_by, closed_role, read_to)
        SELECT DISTINCT ON (month) month, 'CLOSED', now(), 'test', now(), 'test', 'test',
            (SELECT max(id) + 1 FROM money_movement)
        FROM ledger_entry ORDER BY month
        """,
    )
    execute(
        engine,
        """
        INSERT INTO settlement_window (month, timezone, starts_at, ends_at)
        SELECT period.month, zone, period.month::timestamp AT TIME ZONE zone,
            (period.month + interval '1 month')::timestamp AT TIME ZONE zone
        FROM settlement_period AS period, (SELECT DISTINCT timezone FROM organization) AS used (zone)
        WHERE state = 'CLOSED'
        """,
    )
    with engine.begin() as connection:
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        connection.execute(
            text("""
                INSERT INTO organization_balance (organization_id, currency, month, previous_month, opening, net,
                    returned, due, payable, closing, payouts_from, knows_history)
                SELECT organization_id, currency, month,
                    CASE month WHEN :month THEN month - interval '1 month' END, 0, 0, 0, 0, 0, 0,
                    (SELECT payouts_from FROM installation), true
                FROM ledger_entry WHERE month >= :month - interval '1 month'
            """),
            {"month": FEBRUARY.first_day},
        )
    settle(engine)
    add_movement(engine, 7, 100, "2026-03-11T10:00")
    add_movement(engine, 8, 100, "2025-03-11T10:00")
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(
            "VACUUM (ANALYZE) ledger_entry, money_movement, organization_balance, settlement_chunk"
        )


def read_late(engine: Engine) -> None:
    with engine.connect() as connection:
        assert late_months(connection) == (MARCH,)


def post_late(engine: Engine) -> None:
    assert settle(engine).rows_adjusted == 2


def close_march(engine: Engine) -> None:
    assert close(engine, MARCH, chunk_size=100).rows_new == ORGANIZATIONS


def state_some(engine: Engine) -> None:
    close(engine, MARCH)
    with engine.connect() as connection:
        assert len(read_statements(connection, MARCH, list(ASKED))) == len(ASKED)
        assert len(list(read_movements(connection, MARCH, list(ASKED)))) == 2 * len(ASKED)


def explain_one(engine: Engine) -> None:
    with engine.connect() as connection:
        assert explain(connection, "7", MARCH).entries


def list_late(engine: Engine) -> None:
    with engine.connect() as connection:
        late_adjustments(connection, MARCH)


# How many rows of the ledger a statement may look at: what its organizations have in the months it is about.
WORK: dict[str, tuple[Callable[[Engine], None], int]] = {
    "late": (read_late, ORGANIZATIONS),
    "chunk": (post_late, ORGANIZATIONS),
    "balances": (close_march, ORGANIZATIONS),
    "statement": (state_some, ORGANIZATIONS),
    "explanation": (explain_one, MONTHS),
    "list of what came late": (list_late, ORGANIZATIONS),
}


@pytest.mark.parametrize("work", WORK)
def test_of_two_years_only_what_is_asked_for_is_read(years: Engine, work: str) -> None:
    does, bound = WORK[work]
    plans: list[tuple[str, Node]] = []

    @event.listens_for(years, "before_cursor_execute")
    def note_plan(_connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if "ledger_entry" in statement and "pg_constraint" not in statement:
            plans.append((statement, plan_of(cursor, statement, parameters)))

    does(years)
    event.remove(years, "before_cursor_execute", note_plan)
    assert plans
    for statement, plan in plans:
        for scan in scans_of(plan, "ledger_entry"):
            rows = scan["Actual Loops"] * (scan["Actual Rows"] + scan.get("Rows Removed by Filter", 0))
            assert scan["Node Type"] != "Seq Scan", statement
            assert rows <= bound + 2, statement
