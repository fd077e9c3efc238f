"""What `ticketflow roles` sets up: each role may do on every table what it is granted, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, Row, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import ProgrammingError

from tests.conftest import fresh_database, run_sql
from tests.outbox.relay.world import DELIVERED, GONE, REJECTED, Receiver, add, delivery, route, run, states
from tests.support.payable import request, requested_payout
from tests.support.provider_by_hand import CONFIRMED, recorded, said
from tests.support.rows import add_event, add_movement, add_organization, add_reservation, instant
from tests.support.settled import MARCH
from tests.support.sql_statements import execute
from tests.support.statements import close, state
from ticketflow_orch import clock
from ticketflow_orch.db.catalogue import ANALYST_ROLE, OWNER_ROLE, RELAY_ROLE, RUN_ROLE, expected
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.db.migrate import migrate
from ticketflow_orch.db.roles import foreign_owners, role_faults, set_up_roles
from ticketflow_orch.errors import PreconditionFailed
from ticketflow_orch.event_handlers import KINDS
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.outbox.delivery.configuration import Delivery
from ticketflow_orch.outbox.delivery.handlers import EventKind, Rendered
from ticketflow_orch.ticketing.reminders import ReminderRules, send_reminders

GRANTED = (RUN_ROLE, RELAY_ROLE, ANALYST_ROLE)
PRIVILEGES = ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER")
# The only tables that nobody but the owner may ever change, whatever becomes of grants.
MONEY = ("money_movement", "ledger_entry")


@contextmanager
def as_role(url: URL, role: str) -> Iterator[Engine]:
    engine = connect_engine(url.update_query_dict({"options": f"-c role={role}"}), f"pytest {role}")
    try:
        yield engine
    finally:
        engine.dispose()


@pytest.fixture
def set_up(engine: Engine) -> Engine:
    set_up_roles(engine)
    return engine


def faults(engine: Engine) -> tuple[str, ...]:
    with engine.connect() as connection:
        return role_faults(connection)


@pytest.mark.every_server
@pytest.mark.parametrize("role", GRANTED)
def test_a_role_may_do_on_each_table_and_function_what_it_is_granted_and_nothing_else(
    set_up: Engine, role: str
) -> None:
    with set_up.connect() as connection:
        tables = connection.execute(
            text("""
                SELECT relname || '', privilege FROM pg_class
                CROSS JOIN unnest(CAST(:privileges AS text[])) AS privilege
                WHERE relnamespace = CAST('public' AS regnamespace) AND relkind = 'r' AND relname <> 'alembic_version'
                    AND has_table_privilege(:role, pg_class.oid, privilege)
            """),
            {"role": role, "privileges": list(PRIVILEGES)},
        ).all()
        functions = connection.execute(
            text("""
                SELECT CAST(CAST(oid AS regprocedure) AS text) FROM pg_proc
                WHERE pronamespace = CAST('public' AS regnamespace) AND prosecdef
                    AND has_function_privilege(:role, oid, 'EXECUTE')
            """),
            {"role": role},
        ).scalars()
        may = {f"{privilege} ON {table}" for table, privilege in tables} | {f"EXECUTE ON {name}" for name in functions}
        sequences = connection.execute(
            text("""
                SELECT relname || '' FROM pg_class WHERE relnamespace = CAST('public' AS regnamespace) AND relkind = 'S'
                    AND CASE relkind WHEN 'S' THEN has_sequence_privilege(:role, oid, 'USAGE, UPDATE') END
            """),
            {"role": role},
        ).scalars()
        may |= {f"USAGE ON {name}" for name in sequences}
    assert may == {grant for grant in expected().grants[role] if "(" not in grant.partition(" ON ")[0]}
    assert not {f"{privilege} ON {table}" for table in MONEY for privilege in ("UPDATE", "DELETE", "TRUNCATE")} & may


@pytest.fixture(scope="session")
def untouched(server: EmbeddedServer) -> Iterator[URL]:
    """One database for all that is refused."""
    with fresh_database(server) as url:
        engine = connect_engine(url, "pytest owner")
        set_up_roles(engine)
        engine.dispose()
        yield url


@pytest.mark.parametrize(
    ("role", "statement"),
    [
        *((RELAY_ROLE, statement) for statement in (
            "INSERT INTO ledger_entry (net) VALUES (1)",
            "INSERT INTO money_movement (amount) VALUES (1)",
            "INSERT INTO payout (amount) VALUES (1)",
            "UPDATE payout SET amount = 1",
            "UPDATE payout SET returned_month = '2026-03-01'",
            "UPDATE settlement_period SET state = 'CLOSED'",
            "UPDATE parked_organization SET resolved_at = now()",
            "UPDATE outbox_event SET payload = '{}'",
            "DELETE FROM outbox_event",
            "DELETE FROM delivery_stop",
            "UPDATE reservation SET status = 'EXPIRED'",
            "UPDATE organization SET contact_email = 'me@example.com'",
            "INSERT INTO mail_suppression (address) VALUES ('a@example.com')",
            "SELECT * FROM opening_balance",
            "SELECT outbox_prune(now(), 1)",
            "CREATE TABLE mine (id bigint)",
            "CREATE TEMPORARY TABLE payout (id bigint)",
        )),
        *((ANALYST_ROLE, statement) for statement in (
            "SELECT buyer_email FROM reservation",
            "SELECT * FROM reservation",
            "SELECT payload FROM outbox_event",
            "SELECT body FROM outbox_event",
            "SELECT response FROM outbox_attempt",
            "SELECT address FROM mail_suppression",
            "SELECT payload FROM alert_group",
            "INSERT INTO ledger_entry (net) VALUES (1)",
            "UPDATE organization SET name = 'mine'",
            "DELETE FROM job_execution",
            "SELECT id FROM payout FOR UPDATE",
            "SELECT outbox_prune(now(), 1)",
            "CREATE TEMPORARY TABLE payout (id bigint)",
        )),
    ],
)  # fmt: skip
def test_relay_and_analysts_are_refused_what_is_not_theirs(untouched: URL, role: str, statement: str) -> None:
    with (
        as_role(untouched, role) as engine,
        pytest.raises(ProgrammingError, match="permission denied"),
        engine.begin() as connection,
    ):
        connection.execute(text(statement))


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT id, public_ref, status FROM reservation",
        "SELECT event_id, event_type, state FROM outbox_event",
        "SELECT organization_id, net FROM ledger_entry",
        "SELECT * FROM payout",
        "SELECT version_num FROM alembic_version",
    ],
)
def test_analysts_read_what_names_no_buyer(untouched: URL, statement: str) -> None:
    with as_role(untouched, ANALYST_ROLE) as engine, engine.connect() as connection:
        connection.execute(text(statement))


@pytest.mark.every_server
def test_the_role_of_the_relay_delivers_stops_and_alerts(set_up: Engine) -> None:
    for name in ("taken", "gone", "rejected"):
        add(set_up, name)
    answers = {"taken": DELIVERED, "gone": GONE, "rejected": REJECTED}
    to = delivery(Receiver(lambda message: answers[message.payload["name"]]), remembers=timedelta(hours=1))
    rendering = EventKind(preparer=lambda _, messages: {one.event_id: Rendered(b"x") for one in messages})
    with as_role(set_up.url, RELAY_ROLE) as relay:
        run(relay, to, {"Told": rendering})
    assert "DELIVERED" in states(set_up).values()
    with set_up.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM delivery_stop")).scalar_one() == 1


def test_the_role_of_the_relay_writes_down_what_a_provider_answered(set_up: Engine) -> None:
    requested_payout(set_up)
    with as_role(set_up.url, RELAY_ROLE) as relay:
        recorded(relay, "DELIVERED", said(CONFIRMED))
    with set_up.connect() as connection:
        assert connection.execute(text("SELECT state FROM payout")).scalars().all() == ["CONFIRMED"]


@pytest.mark.every_server
def test_the_role_of_the_relay_delivers_reminders_statements_and_payouts_as_they_are(
    set_up: Engine, tmp_path: Path
) -> None:
    organization = add_organization(set_up, contact_email="finance@example.com")
    add_movement(set_up, organization, 100_000, "2026-03-10T10:00")
    close(set_up, MARCH)
    assert request(set_up, MARCH).requested == 1
    assert state(set_up, tmp_path, mail_from=instant("2026-01-01T00:00")).mails == 1
    now, kinds = clock.now(), {"24h": timedelta(hours=24)}
    send_reminders(set_up, ReminderRules(now - timedelta(days=9), kinds))
    start = now + timedelta(hours=20)
    evening = add_event(set_up, organization, starts_at=start, ends_at=start + timedelta(hours=2))
    add_reservation(set_up, evening, status="CONFIRMED", confirmed_at=instant("2026-05-01T10:14"))
    assert send_reminders(set_up, ReminderRules(now, kinds)).queued == 1
    receiver = Receiver(lambda message: DELIVERED if message.event_type != "PayoutRequested" else said(CONFIRMED))
    with as_role(set_up.url, RELAY_ROLE) as relay:
        run(relay, Delivery({}, route(), {"there": lambda: receiver}), KINDS)
    assert {(one.event_type, one.state) for one in _events(set_up)} == {
        (kind, "DELIVERED") for kind in ("MonthSettled", "PayoutRequested", "ReminderDue", "StatementReady")
    }
    assert all(message.body for message in receiver.sent if message.event_type in {"ReminderDue", "StatementReady"})
    with set_up.connect() as connection:
        assert connection.execute(text("SELECT state FROM payout")).scalars().all() == ["CONFIRMED"]


def _events(engine: Engine) -> Sequence[Row[Any]]:
    with engine.connect() as connection:
        return connection.execute(text("SELECT event_type, state FROM outbox_event")).all()


@pytest.mark.every_server
def test_setting_the_roles_up_twice_changes_nothing(engine: Engine) -> None:
    assert set_up_roles(engine).count > 0
    with engine.connect() as connection:
        before = connection.execute(text("SELECT max(CAST(CAST(xmin AS text) AS bigint)) FROM pg_class")).scalar_one()
    again = set_up_roles(engine)
    assert (again.count, again.left) == (0, ())
    with engine.connect() as connection:
        after = connection.execute(text("SELECT max(CAST(CAST(xmin AS text) AS bigint)) FROM pg_class")).scalar_one()
    assert after == before
    assert faults(engine) == ()


def test_what_was_widened_is_named_and_taken_back(set_up: Engine) -> None:
    execute(set_up, "GRANT UPDATE ON payout TO ticketflow_relay")
    execute(set_up, "GRANT SELECT (buyer_email) ON reservation TO ticketflow_analyst")
    assert faults(set_up) == (
        "role ticketflow_relay may UPDATE payout, which the relay does not need",
        "role ticketflow_analyst may SELECT (buyer_email) reservation, which analysts do not need",
    )
    assert set(set_up_roles(set_up).revoked) == {
        "UPDATE on payout to ticketflow_relay",
        "SELECT (buyer_email) on reservation to ticketflow_analyst",
    }
    assert faults(set_up) == ()


def test_what_was_granted_to_everybody_is_left_and_said(set_up: Engine) -> None:
    execute(set_up, "GRANT SELECT ON opening_balance TO PUBLIC")
    assert set_up_roles(set_up).left == (
        "role ticketflow_relay may SELECT opening_balance, which the relay does not need",
    )


def test_what_a_later_migration_makes_as_another_owner_is_named_and_handed_over(set_up: Engine) -> None:
    execute(set_up, "ALTER TABLE reminder OWNER TO CURRENT_USER")
    with set_up.connect() as connection:
        assert foreign_owners(connection) == ("table reminder belongs to postgres instead of ticketflow_owner",)
    set_up_roles(set_up)
    assert faults(set_up) == ()


@contextmanager
def login(server: EmbeddedServer, url: URL, *attributes: str) -> Iterator[URL]:
    """A role that may log in, and the URL by which it does."""
    name = f"login_{url.database}"
    run_sql(server.url(), f"CREATE ROLE {name} LOGIN PASSWORD 'x' {' '.join(attributes)}")
    try:
        yield url.update_query_dict({"options": f"-c role={name}"})
    finally:
        run_sql(url, f"REASSIGN OWNED BY {name} TO postgres")
        run_sql(url, f"DROP OWNED BY {name}")
        run_sql(server.url(), f"DROP ROLE {name}")


def test_a_login_learns_each_right_that_it_lacks_and_nothing_is_written(
    server: EmbeddedServer, engine: Engine, url: URL
) -> None:
    with login(server, url) as its:
        other = connect_engine(its, "pytest login")
        with pytest.raises(PreconditionFailed, match=r"it lacks .*the ownership of .*ledger_entry.* of the database"):
            set_up_roles(other)
        other.dispose()
    assert len(faults(engine)) > 0


@pytest.mark.every_server
def test_a_member_of_the_owner_migrates_and_sets_the_roles_up_again(
    server: EmbeddedServer, set_up: Engine, url: URL
) -> None:
    with login(server, url) as its:
        execute(set_up, f"GRANT {OWNER_ROLE} TO login_{url.database}")
        assert migrate(its) is False
        execute(set_up, "REVOKE SELECT ON payout FROM ticketflow_relay")
        other = connect_engine(its, "pytest member")
        assert set_up_roles(other).granted == ("SELECT on payout to ticketflow_relay",)
        other.dispose()
