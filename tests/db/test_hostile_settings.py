"""Whatever the defaults of the database or of a role are, a statement means the same."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.engine import URL

from tests.conftest import fresh_database, run_sql
from tests.support.folders import story, write_folder
from tests.support.payable import rows
from tests.support.rows import add_event, add_movement, add_organization, add_reservation, instant
from tests.support.sql_statements import execute
from tests.support.statements import close, state
from ticketflow_orch.auditing import INVARIANTS, Asked, examine, snapshot
from ticketflow_orch.db.engine import SessionLimits, connect_engine, session_faults
from ticketflow_orch.importing import import_folder
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.months import Month
from ticketflow_orch.settings import settings
from ticketflow_orch.ticketing.lifecycle import LifecycleRules
from ticketflow_orch.ticketing.reminders import ReminderRules, send_reminders
from ticketflow_orch.ticketing.reservations import expire_reservations

HOSTILE = {
    "default_transaction_isolation": "repeatable read",
    "default_transaction_deferrable": "on",
    "DateStyle": "SQL, DMY",
    "IntervalStyle": "sql_standard",
    "TimeZone": "Asia/Kathmandu",
    "standard_conforming_strings": "off",
    "bytea_output": "escape",
    "extra_float_digits": "-15",
    "array_nulls": "off",
    "transform_null_equals": "on",
    "client_encoding": "LATIN1",
    "lc_numeric": "C",
    "quote_all_identifiers": "on",
    "jit": "on",
    "statement_timeout": "1ms",
    "lock_timeout": "1ms",
    "idle_in_transaction_session_timeout": "1ms",
}
# The tables of somebody who came first in the path, as a restore into a schema of its own would leave them.
DECOYS = ("currency", "organization", "event", "reservation", "money_movement", "settlement_period", "outbox_event")
MAY = Month(2026, 5)


def make_hostile(url: URL, whose: str) -> None:
    run_sql(url, "CREATE SCHEMA decoys")
    for table in DECOYS:
        run_sql(url, f"CREATE TABLE decoys.{table} (LIKE public.{table})")
    run_sql(url, f"{whose} SET search_path = decoys, public")
    for name, value in HOSTILE.items():
        run_sql(url, f"{whose} SET {name} = '{value}'")


@pytest.fixture(params=["ALTER DATABASE {}", "ALTER ROLE postgres IN DATABASE {}"], ids=["database", "role"])
def hostile(request: pytest.FixtureRequest, server: EmbeddedServer) -> Iterator[Engine]:
    """An engine on a database that would have all that it is asked mean something else."""
    with fresh_database(server) as url:
        make_hostile(url, request.param.format(url.database))
        engine = connect_engine(url, f"pytest {os.getpid()}", connections=20)
        yield engine
        engine.dispose()


def outcome(engine: Engine, folder: Path) -> dict[str, Any]:
    """What a month comes to: imported, expired, reminded, settled, closed and issued."""
    folder.mkdir()
    told = story()
    told["organizations"][0]["name"] = "Teatro Ñandú \\n' 01/02/2026"
    import_folder(engine, write_folder(folder, told), Month(2026, 1))
    evening = add_event(engine, 1, starts_at=instant("2026-06-20T20:00"), ends_at=instant("2026-06-20T23:00"))
    for number in range(3):
        add_reservation(engine, evening, public_ref=f"held-{number}", expires_at=instant("2026-05-01T10:15"))
    add_reservation(engine, evening, public_ref="sold", status="CONFIRMED", confirmed_at=instant("2026-05-01T10:14"))
    now = instant("2026-06-20T10:00")
    execute(engine, "INSERT INTO reminder_kind VALUES ('24h', '24 hours', '2026-01-01Z')")
    close(engine, MAY)
    expired = expire_reservations(engine, LifecycleRules(now, "run"))
    reminded = send_reminders(engine, ReminderRules(now, {"24h": timedelta(hours=24)}))
    stated = state(engine, folder / "statements", MAY)
    files = sorted(path for path in (folder / "statements").rglob("*") if path.is_file())
    return {
        "expired": (expired.reservations, expired.stuck, expired.left),
        "reminded": (reminded.queued, reminded.skipped),
        "stated": (stated.statements, stated.mails),
        "organizations": rows(engine, "SELECT external_ref, name, joined_on FROM public.organization ORDER BY id"),
        "movements": rows(engine, "SELECT external_ref, amount, occurred_at FROM public.money_movement ORDER BY id"),
        "ledger": rows(
            engine,
            """
            SELECT organization_id, currency, CAST(month AS date), CAST(origin_month AS date), captures, refunds, net
            FROM public.ledger_entry ORDER BY organization_id, currency
            """,
        ),
        "windows": rows(engine, "SELECT timezone, starts_at, ends_at FROM public.settlement_window ORDER BY 1, 2"),
        "events": rows(
            engine,
            """
            SELECT event_type, aggregate_id, payload - 'event_id', occurred_at FROM public.outbox_event
            WHERE event_type IN ('ReservationExpired', 'ReminderDue', 'MonthSettled') ORDER BY id
            """,
        ),
        "pages": [path.read_text("utf-8") for path in files if path.suffix == ".html"],
    }


def test_a_month_comes_to_the_same_under_any_defaults(engine: Engine, hostile: Engine, tmp_path: Path) -> None:
    expected = outcome(engine, tmp_path / "plain")
    assert expected["pages"]
    assert expected["expired"][0] == 3 + 1
    assert outcome(hostile, tmp_path / "hostile") == expected


def test_a_capture_that_commits_while_reservations_are_taken_keeps_its_reservation(hostile: Engine) -> None:
    application = connect_engine(hostile.url, "application")
    organization = add_organization(hostile)
    reservation = add_reservation(hostile, add_event(hostile, organization))
    paid = []

    def pay(_: Any, cursor: Any, statement: str, *__: Any) -> None:
        # A snapshot that lasts as long as the transaction would be taken here.
        if "FOR UPDATE OF reservation" in statement and not paid:
            cursor.connection.execute("SELECT 1")
            paid.append(add_movement(application, organization, 5000, "2026-05-01T10:10", reservation_id=reservation))

    event.listen(hostile, "before_cursor_execute", pay)
    try:
        assert expire_reservations(hostile, LifecycleRules(instant("2026-06-01T12:00"), "run")).reservations == 0
    finally:
        event.remove(hostile, "before_cursor_execute", pay)
        application.dispose()
    assert paid
    assert rows(hostile, "SELECT status FROM reservation") == [("ACTIVE",)]


def test_sessions_are_as_they_were_asked_for_in_and_outside_of_transactions(
    hostile: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGDATESTYLE", "German")
    monkeypatch.setenv("PGTZ", "Asia/Tokyo")
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    monkeypatch.setenv("PGOPTIONS", "-c DateStyle=German")
    engine = connect_engine(hostile.url, "pytest")
    for level in ("READ COMMITTED", "AUTOCOMMIT"):
        with engine.connect().execution_options(isolation_level=level) as connection:
            assert session_faults(connection) == ()
            shown = {
                name: connection.exec_driver_sql(f"SHOW {name}").scalar_one()
                for name in ("transaction_isolation", "datestyle", "timezone", "client_encoding", "search_path")
            }
            assert shown == {
                "transaction_isolation": "read committed", "datestyle": "ISO, MDY", "timezone": "UTC",
                "client_encoding": "UTF8", "search_path": "public,pg_temp",
            }  # fmt: skip
    # What was asked to be otherwise for a while is as before when the next one comes.
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        connection.execute(text("SELECT 1"))
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SHOW transaction_isolation").scalar_one() == "read committed"
    engine.dispose()


def test_a_table_of_the_session_s_own_hides_none_of_ours(engine: Engine) -> None:
    organization = add_organization(engine)
    with engine.begin() as connection:
        connection.execute(text("CREATE TEMPORARY TABLE organization (id bigint) ON COMMIT DROP"))
        assert connection.execute(text("SELECT id, external_ref FROM organization")).one().id == organization


# --- What is reported and not overridden


def faults(engine: Engine, **limits: Any) -> tuple[str, ...]:
    fresh = connect_engine(engine.url, "pytest", limits=SessionLimits(**limits))
    try:
        with fresh.connect() as connection:
            return session_faults(connection)
    finally:
        fresh.dispose()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("session_replication_role", "replica", "session_replication_role is 'replica' for this session: ask who set"),
        ("default_transaction_read_only", "on", "default_transaction_read_only is 'on' for this session: ask who set"),
        ("synchronous_commit", "off", "synchronous_commit is 'off': what was committed may be lost in a crash"),
    ],
)
def test_what_only_an_administrator_may_decide_is_told(engine: Engine, name: str, value: str, said: str) -> None:
    assert faults(engine) == ()
    run_sql(engine.url, f"ALTER DATABASE {engine.url.database} SET {name} = '{value}'")
    [fault] = faults(engine)
    assert fault.startswith(said)


@pytest.mark.parametrize("name", ["statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"])
def test_a_bound_that_a_pooler_has_swallowed_is_named_by_the_audit(engine: Engine, name: str) -> None:
    with snapshot(engine) as connection:
        # As if the pooler had given out a session that was opened without our options.
        connection.exec_driver_sql(f"SET LOCAL {name} = 0")
        [broken] = [one for one in examine(connection, Asked.configured(settings()), INVARIANTS) if one.is_broken]
    assert broken.invariant.name == "session_as_asked"
    [said] = [breach.what for finding in broken.findings for breach in finding.examples]
    assert said.startswith(f"{name} is '0' in this session, though '")


def test_a_session_with_bounds_of_its_own_is_as_it_was_asked_for(engine: Engine) -> None:
    assert faults(engine, statement_timeout=0, lock_timeout=0.2) == ()


def test_what_a_url_asks_for_is_expected_too(engine: Engine) -> None:
    given = connect_engine(engine.url.update_query_dict({"options": r"-c work_mem=5MB -c role=postgres"}), "pytest")
    with given.connect() as connection:
        assert session_faults(connection) == ()
        assert datetime.now(UTC) > connection.exec_driver_sql("SELECT now() - interval '1 day'").scalar_one()
    given.dispose()
