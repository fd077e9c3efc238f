"""A database whose passes were cut off by its clock comes to cutoffs by id: nothing changes, nothing is lost."""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from psycopg.errors import DeadlockDetected
from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import OperationalError

from tests.conftest import fresh_database, run_sql
from tests.support.books import close, state_of
from tests.support.database_before_order import (
    APRIL,
    DECEMBER,
    FEBRUARY,
    JANUARY,
    MARCH,
    ORGANIZATIONS,
    PARKED,
    REVISION,
    database_before_order,
)
from tests.support.old_ledger import Load, scalar
from tests.support.oracle import expected, posted, without_zeros
from tests.support.rows import add_movement, instant
from tests.support.sessions import PATIENCE, becomes, two_sessions
from tests.support.settled import settle
from tests.support.sql_statements import LEDGER_ROW, execute
from ticketflow_orch.auditing import Asked, examine
from ticketflow_orch.closing.invariants import missing_balances
from ticketflow_orch.db.engine import SessionLimits, connect_engine
from ticketflow_orch.db.migrate import migrate
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.migrations import ledger_key, recording_order
from ticketflow_orch.migrations.online import with_short_lock
from ticketflow_orch.months import Month
from ticketflow_orch.periods.state import closed_months
from ticketflow_orch.settlement.due import due_months, late_months
from ticketflow_orch.statements.model import must_add_up
from ticketflow_orch.statements.queries import read_statements

NOW = instant("2026-06-15T12:00")
FIRST = Month(2025, 1)

# All that says what anybody is owed, was paid, or was settled.
FIGURES = {
    "ledger_entry": "organization_id, month, currency, origin_month, sequence, captures, refunds, chargebacks, fees,"
    " commission, commission_tax, net, reason, settlement_pass, posted_at, run_id",
    "organization_balance": "organization_id, currency, month, previous_month, opening, net, returned, due, payable,"
    " closing",
    "payout": "public_id, organization_id, currency, month, amount, state, reason, provider_ref, created_at,"
    " first_attempt_at, answered_at, returned_month, decided_by, run_id",
    "opening_balance": "*",
    "settlement_total": "*",
    "settlement_window": "*",
    "settlement_period": "month, state, settled_at, settled_by, closed_at, closed_by, closed_role, paid_at, stated_at",
    "parked_organization": "*",
    "money_movement": "*",
}


@pytest.fixture(scope="session")
def old_database(server: EmbeddedServer) -> str:
    """The name of a database as that version left it."""
    name = f"template_before_order_{uuid.uuid4().hex[:8]}"
    run_sql(server.url(), f"CREATE DATABASE {name}")
    database_before_order(server.url(name)).dispose()
    return name


@pytest.fixture
def old_url(server: EmbeddedServer, old_database: str) -> Iterator[URL]:
    with fresh_database(server, old_database) as url:
        yield url


@pytest.fixture
def old(old_url: URL) -> Iterator[Engine]:
    engine = connect_engine(old_url, "pytest", limits=SessionLimits(lock_timeout=PATIENCE), connections=20)
    yield engine
    engine.dispose()


@contextmanager
def steps(engine: Engine) -> Iterator[Connection]:
    """A connection as the migration's steps need it."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        yield connection


def figures(engine: Engine) -> dict[str, list[str]]:
    """Every figure, as Postgres writes it."""
    with engine.connect() as connection:
        return {
            table: sorted(
                connection.execute(
                    text(f"SELECT CAST(figure AS text) FROM (SELECT {columns} FROM {table}) AS figure")
                ).scalars()
            )
            for table, columns in FIGURES.items()
        }  # fmt: skip


def come_to_an_end(engine: Engine) -> None:
    """What the schedules would do: close what is being closed, then settle and close month by month."""
    close(engine, FEBRUARY, NOW)
    for month in (MARCH, APRIL):
        settle(engine, month, NOW)
        close(engine, month, NOW)


def breaches_of_everything(engine: Engine) -> list[tuple[str, Any]]:
    """What the audit says against the database, by the name of each invariant."""
    with engine.connect() as connection:
        asked = Asked(first_month=FIRST, kept=timedelta(days=90))
        return [(one.invariant.name, one.findings) for one in examine(connection, asked) if one.is_broken]


def assert_every_unit_is_settled_once(engine: Engine) -> None:
    assert without_zeros(posted(engine)) == expected(engine)
    assert breaches_of_everything(engine) == []
    with engine.connect() as connection:
        assert late_months(connection) == ()


def assert_statements_add_up(engine: Engine) -> None:
    with engine.connect() as connection:
        for month in closed_months(connection):
            statements = read_statements(connection, month, list(ORGANIZATIONS))
            assert len(statements) >= len(ORGANIZATIONS) - (len(PARKED) if month == JANUARY else 0)
            for statement in statements:
                must_add_up(statement)


@pytest.mark.every_server
def test_nothing_that_was_settled_closed_or_paid_changes(old: Engine, old_url: URL) -> None:
    before = figures(old)
    assert len(before["ledger_entry"]) > 30
    assert migrate(old_url)
    assert figures(old) == before
    assert [state_of(old, month) for month in (DECEMBER, JANUARY, FEBRUARY, MARCH, APRIL)] == [
        "CLOSED", "CLOSED", "CLOSING", "SETTLED", "OPEN",
    ]  # fmt: skip
    assert_statements_add_up(old)
    assert breaches_of_everything(old) == []
    assert not migrate(old_url)


@pytest.mark.every_server
def test_what_was_unread_is_settled_once_and_what_was_read_is_not_settled_again(old: Engine, old_url: URL) -> None:
    migrate(old_url)
    before = figures(old)["ledger_entry"]
    come_to_an_end(old)
    assert_every_unit_is_settled_once(old)
    assert_statements_add_up(old)
    after = figures(old)["ledger_entry"]
    assert set(before) < set(after)
    # Adjusted in March, which takes in what came late for the closed months: the movements that nobody had read.
    late = """
        SELECT organization_id, to_char(origin_month, 'YYYY-MM'), captures FROM ledger_entry
        WHERE month = '2026-03-01' AND origin_month < month ORDER BY 2, 1
    """
    assert rows(old, late) == [
        (1, "2025-11", 1_061), (2, "2025-12", 1_061),
        (3, "2026-01", 1_061), (5, "2026-01", 1_039), (6, "2026-01", 1_051),
        (3, "2026-02", 1_049), (4, "2026-02", 1_061),
    ]  # fmt: skip


def test_who_was_left_out_of_a_closed_month_is_known_by_name_and_catches_up(old: Engine, old_url: URL) -> None:
    migrate(old_url)
    assert rows(old, "SELECT month, organization_id FROM organization_left_out ORDER BY organization_id") == [
        (JANUARY.first_day, organization) for organization in PARKED
    ]
    with old.connect() as connection:
        assert missing_balances(connection, JANUARY).examples == ()
    close(old, FEBRUARY, NOW)
    for organization in PARKED:
        balanced = scalar(
            old,
            f"SELECT net FROM organization_balance WHERE month = '2026-02-01' AND organization_id = {organization}"
            " AND currency = 'EUR'",
        )
        assert balanced == scalar(
            old,
            f"SELECT sum(net) FROM ledger_entry WHERE organization_id = {organization}"
            " AND month IN ('2026-01-01', '2026-02-01')",
        )


def test_a_pass_that_was_running_is_given_up_and_the_next_one_ends_its_month(old: Engine, old_url: URL) -> None:
    migrate(old_url)
    assert scalar(old, "SELECT state FROM settlement_pass WHERE month = '2026-04-01'") == "GIVEN_UP"
    with old.connect() as connection:
        assert APRIL in due_months(connection, NOW, FIRST)
    result = settle(old, APRIL, NOW)
    # Three organizations were done; of those, one has something late.
    assert (result.settlement is not None and result.settlement.number, result.joined) == (2, False)
    assert (result.rows_new, result.rows_adjusted, result.rows_existing) == (4, 1, 3)
    assert state_of(old, APRIL) == "SETTLED"


def test_what_a_clock_that_went_back_hid_from_a_closed_month_is_adjusted(old: Engine, old_url: URL) -> None:
    """Nothing else that was recorded at that time gives it away."""
    execute(old, "SET LOCAL session_replication_role = replica; DELETE FROM money_movement WHERE id IN (47, 48)")
    migrate(old_url)
    come_to_an_end(old)
    assert rows(old, "SELECT month, captures FROM ledger_entry WHERE captures = 1051") == [(MARCH.first_day, 1_051)]
    assert_every_unit_is_settled_once(old)


def test_what_a_clock_that_went_back_hid_from_a_settled_month_is_settled(old: Engine, old_url: URL) -> None:
    record_as_of(old, 99, 2, "2026-03-15T10:00", "2026-04-02T07:59:50")
    migrate(old_url)
    come_to_an_end(old)
    assert_every_unit_is_settled_once(old)


def test_what_a_month_had_not_read_for_a_clock_that_was_far_ahead_is_read_by_the_next_pass(
    old: Engine, old_url: URL
) -> None:
    ahead = """
        SET LOCAL session_replication_role = replica;
        UPDATE settlement_pass SET cutoff = clock_timestamp() + interval '30 days'
        WHERE month = '2026-03-01' AND pass = 2
    """
    execute(old, ahead)
    migrate(old_url)
    add_movement(old, 4, 1_093, "2026-03-25T10:00")
    come_to_an_end(old)
    assert_every_unit_is_settled_once(old)


# --- What a failure leaves behind, and what goes on meanwhile


@pytest.mark.parametrize("revision", [REVISION, "0011", "0012"])
def test_a_revision_that_was_done_but_not_written_down_is_repeated_without_harm(
    old: Engine, old_url: URL, revision: str
) -> None:
    before = figures(old)
    migrate(old_url, {REVISION: "0011", "0011": "0012", "0012": "0013"}[revision])
    execute(old, f"UPDATE alembic_version SET version_num = '{revision}'")
    assert migrate(old_url)
    assert figures(old) == before
    come_to_an_end(old)
    assert_every_unit_is_settled_once(old)


@pytest.mark.parametrize("statements", [2, 3, 6, 9, 10, 12, 13, 14, 16, 17, 20, 21])
def test_a_migration_that_is_killed_between_its_statements_is_finished_by_the_repeat(
    old: Engine, old_url: URL, statements: int
) -> None:
    before = figures(old)
    with killed_after(old, statements), pytest.raises(KeyboardInterrupt):
        take_all_steps(old)
    assert migrate(old_url)
    assert figures(old) == before
    come_to_an_end(old)
    assert_every_unit_is_settled_once(old)


def take_all_steps(engine: Engine) -> None:
    """What the three revisions do, in the same order."""
    with steps(engine) as connection:
        recording_order.expand(connection)
        recording_order.contract(connection)
        ledger_key.begin_with_month(connection)


@contextmanager
def killed_after(engine: Engine, statements: int) -> Iterator[None]:
    """Within the block the process ends before the next statement after so many."""
    sent = itertools.count()

    def die(*_: Any) -> None:
        if next(sent) == statements:
            raise KeyboardInterrupt

    event.listen(engine, "before_cursor_execute", die)
    yield
    event.remove(engine, "before_cursor_execute", die)


@pytest.mark.every_server
def test_readers_and_writers_of_the_ledger_and_of_movements_work_on_all_the_while(old: Engine, old_url: URL) -> None:
    execute(old, "INSERT INTO settlement_period (month) VALUES ('2026-05-01')")
    row = LEDGER_ROW | {"month": "'2026-05-01'", "origin_month": "'2026-05-01'"}
    with recording(old_url) as recorded, Load(old_url, row) as load:
        assert migrate(old_url)
        load.goes_on()
    assert load.failures == []
    assert load.slowest < Load.PATIENCE
    assert len(recorded) > 10
    assert scalar(old, "SELECT count(*) FROM money_movement WHERE external_ref LIKE 'meanwhile-%'") == len(recorded)
    execute(old, "SET LOCAL session_replication_role = replica; DELETE FROM ledger_entry WHERE month = '2026-05-01'")
    come_to_an_end(old)
    assert_every_unit_is_settled_once(old)


@contextmanager
def recording(url: URL) -> Iterator[list[int]]:
    """Within the block an application with little patience records movements; their ids."""
    engine = connect_engine(url, "application", limits=SessionLimits(statement_timeout=Load.PATIENCE), connections=1)
    recorded: list[int] = []
    stop = threading.Event()

    def record() -> None:
        while not stop.is_set():
            recorded.append(
                add_movement(engine, 2, 1_097, "2026-01-25T10:00", external_ref=f"meanwhile-{len(recorded)}")
            )

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(record)
        try:
            yield recorded
        finally:
            stop.set()
            writing.result(PATIENCE)
            engine.dispose()


def test_a_writer_that_holds_movements_holds_up_the_switch_alone_and_loses_nothing(old: Engine, old_url: URL) -> None:
    with two_sessions(old) as (writer, _):
        writer.run(RECORD)
        with steps(old) as connection:
            with_short_lock(connection, recording_order._ADD_COLUMNS, table="settlement_pass")
            with pytest.raises(
                TicketflowError, match=rf"money_movement stayed in use by .*process {writer.pid} \(pytest\)"
            ):
                with_short_lock(connection, recording_order._DRAWN_IDS, table="money_movement", attempts=2, pause=0.1)
        with ThreadPoolExecutor(1) as pool:
            migrating = pool.submit(migrate, old_url)
            assert becomes(lambda: scalar(old, "SELECT version_num FROM alembic_version") == REVISION)
            writer.commit()
            assert migrating.result(PATIENCE)
    come_to_an_end(old)
    assert_every_unit_is_settled_once(old)


def test_of_two_migrations_at_once_one_waits_and_finds_nothing_left(old: Engine, old_url: URL) -> None:
    before = figures(old)
    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(migrate, (old_url, old_url))) == [False, True]
    assert figures(old) == before


def test_a_run_of_old_code_that_holds_a_chunk_is_waited_for_or_ends_with_an_error(old: Engine, old_url: URL) -> None:
    """It holds a chunk and then wants the month, which the switch holds: either gives way, and both are whole."""
    with two_sessions(old) as (worker, _), ThreadPoolExecutor(1) as pool:
        worker.run("SELECT FROM settlement_chunk WHERE month = '2026-04-01' AND state = 'PLANNED' FOR UPDATE")
        migrating = pool.submit(migrate, old_url)
        assert becomes(lambda: scalar(old, "SELECT count(*) FROM pg_locks WHERE NOT granted") > 0)
        try:
            worker.run("SELECT FROM settlement_period WHERE month = '2026-04-01' FOR SHARE")
            worker.run("UPDATE settlement_chunk SET rows_new = 0 WHERE month = '2026-04-01' AND state = 'PLANNED'")
            worker.commit()
        except OperationalError as error:
            if not isinstance(error.orig, DeadlockDetected):
                raise
            worker.rollback()
        assert migrating.result(PATIENCE)
    come_to_an_end(old)
    assert_every_unit_is_settled_once(old)


@pytest.mark.every_server
@pytest.mark.parametrize("revision", [REVISION, "0011", "0012", "0013"])
def test_writers_that_name_the_ledgers_key_work_before_during_and_after(
    old: Engine, old_url: URL, revision: str
) -> None:
    migrate(old_url, revision)
    again = """
        INSERT INTO ledger_entry SELECT * FROM ledger_entry ON CONFLICT ON CONSTRAINT ledger_entry_pkey DO NOTHING
    """
    assert execute(old, again) == 0


RECORD = """
    INSERT INTO money_movement (external_ref, organization_id, kind, currency, amount, commission_rate_bps,
        commission_tax_bps, occurred_at)
    VALUES ('written meanwhile', 2, 'CAPTURE', 'EUR', 1097, 1250, 2000, '2026-01-25 10:00Z')
"""


def record_as_of(engine: Engine, number: int, organization: int, occurred_at: str, recorded_at: str) -> None:
    """A movement whose instant of recording is not that of its insertion."""
    statement = """
        SET LOCAL session_replication_role = replica;
        INSERT INTO money_movement (id, external_ref, organization_id, kind, currency, amount, commission_rate_bps,
            commission_tax_bps, occurred_at, recorded_at)
        VALUES ({number}, 'as of', {organization}, 'CAPTURE', 'EUR', 1103, 1250, 2000,
            '{occurred_at}Z', '{recorded_at}Z');
        SELECT setval('money_movement_id_seq', {number})
    """
    execute(
        engine,
        statement.format(number=number, organization=organization, occurred_at=occurred_at, recorded_at=recorded_at),
    )


def rows(engine: Engine, statement: str) -> list[tuple[Any, ...]]:
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text(statement))]
