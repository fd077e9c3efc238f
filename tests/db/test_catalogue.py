"""What the migrations built is known, so that whatever is missing, switched off or replaced is named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from tests.support.homes import fresh_home, variables_for
from tests.support.payable import rows
from tests.support.sql_statements import execute
from ticketflow_orch.cli.doctor_findings import examine
from ticketflow_orch.cli.findings import State
from ticketflow_orch.db import catalogue
from ticketflow_orch.db.catalogue import RUN_ROLE, foreign_triggers, grant_faults, missing_objects
from ticketflow_orch.db.roles import grants
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.outbox.events import EVENT_TYPES, WRITTEN_BY_THE_DATABASE
from ticketflow_orch.settings import settings

# Functions whose names are written out in full, because a setting would cost every call of theirs.
WRITTEN_OUT = {"money_movement_recorded"}


@pytest.fixture
def granted(engine: Engine) -> Iterator[Engine]:
    """A database in which the role of runs was set up."""
    with engine.begin() as connection:
        connection.exec_driver_sql(grants())
    return engine


def missing(engine: Engine) -> tuple[str, ...]:
    with engine.connect() as connection:
        return missing_objects(connection)


def lacking(engine: Engine) -> tuple[str, ...]:
    with engine.connect() as connection:
        return grant_faults(connection)


def of_runs(engine: Engine) -> list[str]:
    """Faults of the role of runs; what everybody was granted is one of the other roles too."""
    return [fault for fault in lacking(engine) if fault.startswith(f"role {RUN_ROLE} ")]


@pytest.mark.every_server
def test_the_catalogue_is_what_the_migrations_build_on_every_server(granted: Engine) -> None:
    with granted.connect() as connection:
        found = catalogue.found(connection)
        assert missing_objects(connection) == grant_faults(connection) == ()
    assert found == catalogue.expected(), "run `make inventory`"


@pytest.mark.every_server
def test_every_function_looks_where_the_tables_are_whatever_a_session_says(engine: Engine) -> None:
    # One with a body of its own, instead of a text, was bound to what it names when it was made.
    loose = rows(
        engine,
        """
        SELECT CAST(proname AS text) FROM pg_proc
        WHERE pronamespace = CAST('public' AS regnamespace) AND prosqlbody IS NULL
            AND NOT coalesce(proconfig @> ARRAY['search_path=pg_catalog, public, pg_temp'], false)
        """,
    )
    assert {name for (name,) in loose} == WRITTEN_OUT


def test_the_types_that_may_be_written_are_those_that_the_code_writes(engine: Engine) -> None:
    names = {name for (name,) in rows(engine, "SELECT name FROM outbox_event_type")}
    assert names == EVENT_TYPES - WRITTEN_BY_THE_DATABASE


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("DROP TABLE statement_mail", "table statement_mail is missing"),
        ("DROP TABLE settlement_total", "table settlement_total is missing"),
        ("ALTER TABLE alert SET UNLOGGED", "table alert is not what the migrations made"),
        ("ALTER TABLE payout ENABLE ROW LEVEL SECURITY", "table payout is not what the migrations made"),
        (
            "CREATE RULE lost AS ON INSERT TO outbox_event DO INSTEAD NOTHING",
            "table outbox_event is not what the migrations made",
        ),
        ("ALTER TABLE reminder ALTER COLUMN kind DROP NOT NULL", "table reminder is not what the migrations made"),
        ("CREATE TABLE more () INHERITS (ledger_entry)", "table ledger_entry is not what the migrations made"),
        ("ALTER SEQUENCE outbox_event_id_seq CACHE 20", "sequence outbox_event_id_seq is not what the migrations made"),
        (
            "ALTER TABLE reminder DISABLE TRIGGER ALL",
            "constraint reminder_reservation_id_fkey is missing or not valid",
        ),
        (
            "GRANT EXECUTE ON FUNCTION outbox_prune(timestamptz, bigint) TO PUBLIC",
            "function outbox_prune(timestamp with time zone,bigint) is not what the migrations made",
        ),
        (
            "ALTER FUNCTION outbox_prune(timestamptz, bigint) OWNER TO pg_monitor",
            "function outbox_prune(timestamp with time zone,bigint) is not what the migrations made",
        ),
        ("DROP INDEX settlement_pass_one_running", "index settlement_pass_one_running is missing or not valid"),
        (
            "ALTER TABLE reminder DROP CONSTRAINT reminder_reservation_id_kind_event_date_key",
            "constraint reminder_reservation_id_kind_event_date_key is missing or not valid",
        ),
        (
            "ALTER TABLE payout DROP CONSTRAINT payout_amount_check, ADD CONSTRAINT payout_amount_check"
            " CHECK (amount <> 0)",
            "constraint payout_amount_check is not what the migrations made",
        ),
        (
            "ALTER TABLE job_execution DISABLE TRIGGER job_execution_transition",
            "trigger job_execution_transition is missing or switched off",
        ),
        (
            "ALTER TABLE payout ENABLE REPLICA TRIGGER payout_frozen",
            "trigger payout_frozen is missing or switched off",
        ),
        (
            "CREATE OR REPLACE TRIGGER payout_kept BEFORE TRUNCATE ON payout FOR EACH STATEMENT"
            " EXECUTE FUNCTION refuse('payouts are never deleted')",
            "trigger payout_kept is not what the migrations made",
        ),
        (
            "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN RETURN coalesce(NEW, OLD); END'",
            "function refuse() is not what the migrations made",
        ),
        ("ALTER FUNCTION refuse_transition() RESET search_path", "function refuse_transition() is not what"),
        (
            "ALTER DOMAIN month_start DROP CONSTRAINT month_start_check",
            "constraint month_start_check is missing or not valid",
        ),
    ],
)
def test_what_is_not_as_it_was_built_is_named_alone(engine: Engine, damage: str, said: str) -> None:
    execute(engine, damage)
    [fault] = missing(engine)
    assert fault.startswith(said)


@pytest.mark.parametrize(
    ("table", "faults"),
    [
        (
            "outbox_event",
            ("trigger others may change or drop what is written to outbox_event, and no migration made it",),
        ),
        ("reservation", ()),
    ],
)
def test_a_trigger_of_others_is_named_where_only_this_project_writes(
    engine: Engine, table: str, faults: tuple[str, ...]
) -> None:
    execute(engine, "CREATE FUNCTION others() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    execute(engine, f"CREATE TRIGGER others BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION others()")
    with engine.connect() as connection:
        assert foreign_triggers(connection) == faults
    assert missing(engine) == ()


def test_nobody_but_the_owner_may_lend_a_table_what_runs_with_the_owners_rights(engine: Engine) -> None:
    lent = """
        SELECT CAST(proname AS text) FROM pg_proc
        WHERE pronamespace = CAST('public' AS regnamespace) AND prosecdef
            AND has_function_privilege('public', oid, 'EXECUTE')
    """
    assert rows(engine, lent) == []


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("REVOKE INSERT ON ledger_entry FROM ticketflow_run", "may not INSERT ledger_entry, which runs need"),
        (
            "REVOKE UPDATE (state, ended_at) ON outbox_event FROM ticketflow_run",
            "may not UPDATE (ended_at, state) outbox_event, which runs need",
        ),
        ("REVOKE SELECT ON settlement_window FROM ticketflow_run", "may not SELECT settlement_window, which runs need"),
        (
            "REVOKE USAGE ON SEQUENCE money_movement_id_seq FROM ticketflow_run",
            "may not USAGE money_movement_id_seq, which runs need",
        ),
        (
            "REVOKE EXECUTE ON FUNCTION outbox_prune(timestamptz, bigint) FROM ticketflow_run",
            "may not EXECUTE outbox_prune(timestamp with time zone,bigint), which runs need",
        ),
        ("GRANT CREATE ON SCHEMA public TO PUBLIC", "may create objects in the schema public"),
        ("GRANT UPDATE ON payout TO ticketflow_run", "may UPDATE payout, which runs do not need"),
        ("GRANT DELETE ON ledger_entry TO PUBLIC", "may DELETE ledger_entry, which runs do not need"),
        (
            "GRANT UPDATE (payouts_from, rehearsal) ON installation TO ticketflow_run",
            "may UPDATE (payouts_from, rehearsal) installation, which runs do not need",
        ),
        (
            "GRANT UPDATE ON SEQUENCE money_movement_id_seq TO ticketflow_run",
            "may UPDATE money_movement_id_seq, which runs do not need",
        ),
        (
            "GRANT EXECUTE ON FUNCTION money_movement_late_capture() TO ticketflow_run",
            "may EXECUTE money_movement_late_capture(), which runs do not need",
        ),
        (
            "ALTER TABLE settlement_pass OWNER TO ticketflow_run",
            "may do all that the owner of settlement_pass may, and nothing guards the database from that",
        ),
    ],
)
def test_what_the_role_of_runs_lacks_or_has_too_much_is_named(granted: Engine, damage: str, said: str) -> None:
    execute(granted, damage)
    assert of_runs(granted) == [f"role {RUN_ROLE} {said}"]


def test_a_role_that_may_hide_tables_behind_its_own_is_named(granted: Engine) -> None:
    execute(granted, f"GRANT TEMPORARY ON DATABASE {granted.url.database} TO PUBLIC")
    assert of_runs(granted) == [f"role {RUN_ROLE} may create temporary tables in this database"]


def test_grants_that_were_widened_are_gone_when_the_role_is_made_again(granted: Engine) -> None:
    execute(granted, "GRANT ALL ON ALL TABLES IN SCHEMA public TO ticketflow_run")
    execute(granted, "GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO ticketflow_run")
    assert len(lacking(granted)) > 1
    with granted.begin() as connection:
        connection.exec_driver_sql(grants())
    assert lacking(granted) == ()


def test_nothing_is_said_of_grants_where_runs_carry_no_role_of_their_own(engine: Engine) -> None:
    assert lacking(engine) == ()


# --- The doctor


@pytest.mark.parametrize(
    ("table", "unanswered"),
    [("settlement_period", {"order of recording", "payouts"}), ("installation", {"installation", "names"})],
)
def test_the_doctor_names_a_table_that_was_dropped_and_all_else_that_it_finds(
    server: EmbeddedServer, engine: Engine, scratch: Path, table: str, unanswered: set[str]
) -> None:
    execute(engine, f"DROP TABLE {table} CASCADE")
    with fresh_home(scratch, TICKETFLOW_FIRST_MONTH="2014-10", **variables_for(engine.url, server.url("unused"))):
        found = {finding.subject: finding for finding in examine(settings())}
    assert f"table {table} is missing" in found["guards"].detail
    for subject in unanswered:
        assert f'lacks a part of its schema (relation "{table}" does not exist)' in found[subject].detail
    wrong = {subject for subject, finding in found.items() if finding.state == State.WRONG}
    assert wrong == {"guards", "dagster storage", *unanswered} | ({"payouts"} if table == "installation" else set())
