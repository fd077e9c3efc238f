"""The ledger's key comes to a table that is large, live and holds duplicates; no failure on the way is final."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, OperationalError

from tests.conftest import fresh_database, run_sql
from tests.support.old_ledger import OLD_ROW, Load, old_ledger_in, rows, scalar
from tests.support.sessions import PATIENCE, Session, becomes, two_sessions
from tests.support.sql_statements import LEDGER_ROW, execute, insertion, refusal
from ticketflow_orch.db.engine import SessionLimits, connect_engine
from ticketflow_orch.db.migrate import migrate
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.migrations import ledger_key
from ticketflow_orch.migrations.online import build_index, index_state, with_short_lock

SUMS = """
    SELECT organization_id, count(*), sum(captures), sum(refunds), sum(commission), sum(commission_tax), sum(net)
    FROM ledger_entry GROUP BY organization_id
"""
# Rows that do not carry the number of their place in the order of posting.
OUT_OF_ORDER = """
    SELECT count(*) FROM (
        SELECT sequence, row_number() OVER (
            PARTITION BY organization_id, month, currency, origin_month ORDER BY posted_at) - 1 AS place
        FROM ledger_entry) AS placed
    WHERE sequence IS DISTINCT FROM place
"""


@pytest.fixture(scope="session")
def old_ledger(server: EmbeddedServer) -> str:
    """The name of a database as production once had it: at 0001, its ledger full and without a key."""
    name = f"template_old_ledger_{uuid.uuid4().hex[:8]}"
    run_sql(server.url(), f"CREATE DATABASE {name}")
    old_ledger_in(server.url(name)).dispose()
    return name


@pytest.fixture
def old_url(server: EmbeddedServer, old_ledger: str) -> Iterator[URL]:
    with fresh_database(server, old_ledger) as url:
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


def assert_finished(engine: Engine) -> None:
    """The key is there, the table is strict, and nothing that only the migration needed is left."""
    with engine.connect() as connection:
        assert index_state(connection, "ledger_entry_pkey") == (True, True)
        key = connection.execute(
            text("SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'ledger_entry_pkey'")
        ).scalar_one()
    assert key == "PRIMARY KEY (month, organization_id, currency, origin_month, sequence)"
    assert scalar(engine, OUT_OF_ORDER) == 0
    assert scalar(engine, "SELECT count(*) FROM pg_index WHERE NOT (indisvalid AND indisready)") == 0
    indexes = "SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = 'ledger_entry'::regclass"
    assert rows(engine, indexes) == {("ledger_entry_pkey",), ("ledger_entry_month_idx",)}
    triggers = "SELECT tgname FROM pg_trigger WHERE tgrelid = 'ledger_entry'::regclass"
    assert rows(engine, triggers) == {("ledger_entry_append_only",), ("ledger_entry_period_open",)}
    assert scalar(engine, "SELECT to_regproc('ledger_entry_numbering')") is None
    for statement in ("UPDATE ledger_entry SET sequence = sequence", "DELETE FROM ledger_entry"):
        assert "append-only" in refusal(engine, statement)
    unnumbered = insertion("ledger_entry", LEDGER_ROW | {"sequence": "NULL"})
    assert 'null value in column "sequence"' in refusal(engine, unnumbered)


@pytest.mark.every_server
def test_every_row_keeps_its_amounts_and_gets_its_place_in_the_order_of_posting(old: Engine, old_url: URL) -> None:
    before = rows(old, SUMS)
    assert migrate(old_url)
    assert rows(old, SUMS) == before
    assert_finished(old)
    sizes = "SELECT DISTINCT max(sequence) + 1 FROM ledger_entry GROUP BY organization_id"
    assert rows(old, sizes) == {(1,), (2,), (3,), (4,)}
    assert not migrate(old_url)


@pytest.mark.every_server
def test_readers_and_old_writers_work_on_all_the_while(old: Engine, old_url: URL) -> None:
    before = rows(old, SUMS)
    with Load(old_url) as load:
        assert migrate(old_url)
        load.goes_on()
    assert load.failures == []
    # A step that cannot have the table at once waits for the lock timeout at most, and with it those behind it.
    assert load.slowest < Load.PATIENCE
    assert load.written > 50
    assert_finished(old)
    assert {row for row in rows(old, SUMS) if row[0] < Load.FIRST} == before
    assert scalar(old, f"SELECT count(*) FROM ledger_entry WHERE organization_id >= {Load.FIRST}") == load.written


# --- What the table allows while it is expanded


def test_while_numbers_are_given_nothing_else_can_change(old: Engine) -> None:
    with steps(old) as connection:
        ledger_key.learn_sequence(connection)
    where = "WHERE organization_id = 1"
    for change in (
        "net = net + 1, captures = captures + 1",
        "sequence = 0, run_id = 'x'",
        "run_id = 'x'",
        "month = month",
    ):
        assert "append-only" in refusal(old, f"UPDATE ledger_entry SET {change} {where}")
    for statement in (f"DELETE FROM ledger_entry {where}", "TRUNCATE ledger_entry"):
        assert "append-only" in refusal(old, statement)


def test_a_number_is_given_once_and_only_rows_that_share_one_may_be_moved(old: Engine) -> None:
    with steps(old) as connection:
        ledger_key.learn_sequence(connection)
    pair = "WHERE organization_id = 7"
    assert execute(old, f"UPDATE ledger_entry SET sequence = 5 {pair}") == 2
    assert "append-only" in refusal(old, f"UPDATE ledger_entry SET sequence = NULL {pair}")
    assert "append-only" in refusal(old, f"UPDATE ledger_entry SET sequence = 6 {pair}")
    one = "ctid = (SELECT max(ctid) FROM ledger_entry WHERE organization_id = 7)"
    assert execute(old, f"UPDATE ledger_entry SET sequence = 6 WHERE {one}") == 1
    for number in (7, "NULL"):
        assert "append-only" in refusal(old, f"UPDATE ledger_entry SET sequence = {number} WHERE {one}")


def test_what_old_code_added_between_the_two_revisions_is_numbered(old: Engine, old_url: URL) -> None:
    migrate(old_url, "0002")
    assert scalar(old, "SELECT count(*) FROM ledger_entry WHERE sequence IS NULL") == 0
    posted_later = insertion("ledger_entry", OLD_ROW | {"organization_id": "7"})
    execute(old, posted_later)
    execute(old, posted_later)
    migrate(old_url)
    assert_finished(old)
    assert rows(old, "SELECT sequence FROM ledger_entry WHERE organization_id = 7") == {(0,), (1,), (2,), (3,)}
    assert "ledger_entry_pkey" in refusal(old, posted_later)


def test_a_number_taken_meanwhile_is_passed_over(old: Engine) -> None:
    with steps(old) as connection, two_sessions(old) as (writer, _), ThreadPoolExecutor(1) as pool:
        ledger_key.expand(connection)
        execute(old, insertion("ledger_entry", OLD_ROW | {"organization_id": "99999"}))
        writer.run(insertion("ledger_entry", LEDGER_ROW | {"organization_id": "99999"}))
        numbering = pool.submit(ledger_key.number_rows, connection)
        assert becomes(lambda: waiting(old) == ["transactionid"])
        writer.commit()
        assert numbering.result(PATIENCE) == 1
    assert rows(old, "SELECT sequence FROM ledger_entry WHERE organization_id = 99999") == {(0,), (1,)}


def waiting(engine: Engine) -> list[str]:
    """What kinds of locks are waited for in this database."""
    with engine.connect() as connection:
        statement = """
            SELECT locktype FROM pg_locks JOIN pg_stat_activity USING (pid)
            WHERE NOT granted AND datname = current_database()
        """
        return list(connection.execute(text(statement)).scalars())


# --- What a failure leaves behind, and how the repeat fixes it


@pytest.mark.every_server
def test_duplicates_leave_an_index_that_enforces_nothing_and_the_repeat_numbers_them(old: Engine, old_url: URL) -> None:
    duplicate = insertion("ledger_entry", LEDGER_ROW | {"organization_id": "88888"})
    with steps(old) as connection:
        ledger_key.learn_sequence(connection)
        ledger_key.number_rows(connection)
        execute(old, duplicate)
        execute(old, duplicate)
        with pytest.raises(
            TicketflowError, match=r"ledger_entry_key is not unique \(Key .*88888.* is duplicated.\); run"
        ):
            build_index(connection, ledger_key.INDEX, "ledger_entry", ledger_key.KEY, unique=True)
        assert index_state(connection, ledger_key.INDEX) == (False, False)
    execute(old, duplicate)
    assert migrate(old_url)
    assert_finished(old)
    assert rows(old, "SELECT sequence FROM ledger_entry WHERE organization_id = 88888") == {(0,), (1,), (2,)}


@pytest.mark.every_server
@pytest.mark.parametrize("how", ["cancelled", "out of patience"])
def test_a_late_end_leaves_an_index_that_enforces_but_does_not_count_and_the_repeat_builds_it_anew(
    old: Engine, old_url: URL, how: str
) -> None:
    impatient = connect_engine(old_url, "pytest", limits=SessionLimits(lock_timeout=0.5), connections=2)
    with steps(impatient if how == "out of patience" else old) as connection:
        ledger_key.learn_sequence(connection)
        ledger_key.number_rows(connection)
        with two_sessions(old) as (analyst, _), ThreadPoolExecutor(1) as pool:
            analyst.run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            analyst.run("SELECT count(*) FROM currency")
            building = pool.submit(
                build_index, connection, ledger_key.INDEX, "ledger_entry", ledger_key.KEY, unique=True
            )
            assert becomes(lambda: waiting(old) == ["virtualxid"])
            if how == "cancelled":
                scalar(old, "SELECT pg_cancel_backend(pid) FROM pg_locks WHERE locktype = 'virtualxid' AND NOT granted")
                with pytest.raises(OperationalError, match="canceling statement due to user request"):
                    building.result(PATIENCE)
            else:
                with pytest.raises(TicketflowError, match=rf"waited in vain .* of process {analyst.pid} \(pytest\)"):
                    building.result(PATIENCE)
        assert index_state(connection, ledger_key.INDEX) == (False, True)
    impatient.dispose()
    assert "ledger_entry_key" in refusal(old, insertion("ledger_entry", LEDGER_ROW))
    left_behind = scalar(old, "SELECT 'ledger_entry_key'::regclass::oid")
    assert migrate(old_url, "0002")
    assert scalar(old, "SELECT 'ledger_entry_key'::regclass::oid") != left_behind
    assert migrate(old_url)
    assert_finished(old)


@pytest.mark.every_server
def test_a_long_reader_holds_up_the_attaching_alone_and_the_repeat_attaches(old: Engine, old_url: URL) -> None:
    migrate(old_url, "0002")
    with steps(old) as connection:
        ledger_key.require_sequence(connection)
        with two_sessions(old) as (analyst, _), Load(old_url) as load:
            analyst.run("SELECT count(*) FROM ledger_entry")
            with pytest.raises(
                TicketflowError, match=rf"in use by .*process {analyst.pid} \(pytest\).* through 2 tries of 1.5 s"
            ):
                ledger_key.attach_key(connection, attempts=2, pause=0.1)
            load.goes_on()
        assert load.failures == []
        assert load.slowest < Load.PATIENCE
        assert index_state(connection, ledger_key.INDEX) == (True, True)
    assert "ledger_entry_key" in refusal(old, insertion("ledger_entry", LEDGER_ROW))
    assert migrate(old_url)
    assert_finished(old)


def test_of_two_migrations_at_once_one_waits_and_finds_nothing_left(old: Engine, old_url: URL) -> None:
    sessions = """
        SELECT count(*) FROM pg_stat_activity
        WHERE application_name = 'ticketflow migrate' AND datname = current_database()
    """
    with ThreadPoolExecutor(2) as pool, stopped_while_numbering(old) as gate:
        first = pool.submit(migrate, old_url)
        assert becomes(lambda: waiting(old) == ["advisory"])
        second = pool.submit(migrate, old_url)
        assert becomes(lambda: scalar(old, sessions) == 3)
        gate.rollback()
        assert (first.result(60), second.result(60)) == (True, False)
    assert_finished(old)


def test_a_migration_killed_while_numbering_is_finished_by_the_repeat(old: Engine, old_url: URL) -> None:
    before = rows(old, SUMS)
    with ThreadPoolExecutor(1) as pool, stopped_while_numbering(old):
        migration = pool.submit(migrate, old_url)
        assert becomes(lambda: waiting(old) == ["advisory"])
        scalar(old, "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
        with pytest.raises(OperationalError, match=r"terminating connection|closed the connection"):
            migration.result(PATIENCE)
    unnumbered = scalar(old, "SELECT count(*) FROM ledger_entry WHERE sequence IS NULL")
    assert 0 < unnumbered < len(before)
    assert migrate(old_url)
    assert rows(old, SUMS) == before
    assert_finished(old)


@contextmanager
def stopped_while_numbering(engine: Engine) -> Iterator[Session]:
    """Until the session's transaction ends, numbering stops in its second batch."""
    gate_for_late_organizations = """
        CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM pg_advisory_xact_lock_shared(1);
            RETURN NEW;
        END $$;
        CREATE TRIGGER zz_gate BEFORE UPDATE ON ledger_entry FOR EACH ROW
            WHEN (NEW.organization_id > 16900) EXECUTE FUNCTION gate()
    """
    execute(engine, gate_for_late_organizations)
    with two_sessions(engine) as (keeper, _):
        # It reads no table, so that it holds no snapshot that an index build would wait for.
        keeper.run("SELECT pg_advisory_xact_lock(1)")
        yield keeper
    execute(engine, "DROP TRIGGER zz_gate ON ledger_entry; DROP FUNCTION gate()")


@pytest.mark.parametrize("written_down", ["0001", "0002"])
def test_a_revision_that_was_done_but_not_written_down_is_repeated_without_harm(
    old: Engine, old_url: URL, written_down: str
) -> None:
    migrate(old_url, "0002" if written_down == "0001" else "0003")
    execute(old, f"UPDATE alembic_version SET version_num = '{written_down}'")
    assert migrate(old_url)
    assert_finished(old)


def test_an_autovacuum_in_the_way_is_sent_away(scratch: Path) -> None:
    slow = "autovacuum_vacuum_threshold = 0, autovacuum_vacuum_cost_delay = 100, autovacuum_vacuum_cost_limit = 1"
    vacuuming = """
        SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)
        WHERE relation = 'ledger_entry'::regclass AND query LIKE 'autovacuum: VACUUM%'
    """
    add_column = "ALTER TABLE ledger_entry ADD COLUMN extra text"
    server = EmbeddedServer(scratch / "vacuuming", parameters={"autovacuum_naptime": "1s", "fsync": "off"})
    server.start()
    engine = old_ledger_in(server.url())
    try:
        # Summarizing it is autovacuum's work as well, and would be in its own way.
        execute(engine, f"DROP INDEX ledger_entry_month_idx; ALTER TABLE ledger_entry SET ({slow})")
        with steps(engine) as connection:
            ledger_key.learn_sequence(connection)
            ledger_key.number_rows(connection)
            assert becomes(lambda: scalar(engine, vacuuming) > 0, patience=60)
            with pytest.raises(TicketflowError, match=r"in use by process \d+ \(autovacuum worker\)"):
                with_short_lock(connection, add_column, table="ledger_entry", timeout=0.5, attempts=1)
            with_short_lock(connection, add_column, table="ledger_entry", attempts=5)
    finally:
        engine.dispose()
        server.remove()


def test_a_failed_step_takes_nothing_with_it(old: Engine) -> None:
    halves = "ALTER TABLE ledger_entry ADD COLUMN extra text; ALTER TABLE nowhere ADD COLUMN extra text"
    with steps(old) as connection, pytest.raises(DBAPIError, match='"nowhere" does not exist'):
        with_short_lock(connection, halves, table="ledger_entry")
    assert '"extra" does not exist' in refusal(old, "SELECT extra FROM ledger_entry")
