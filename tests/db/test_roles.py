"""The role of runs may do what the code does, and nothing that would let a fault in it rewrite money."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import ProgrammingError

from tests.conftest import fresh_database
from tests.outbox.relay.world import DELIVERED, GONE, REJECTED, Receiver, add, delivery, run, states
from tests.support.anomalous import found, won_twice
from tests.support.books import FEBRUARY, JANUARY, add_opening_balance, add_payout, balances, breaches, settle_and_close
from tests.support.payable import NOW, owing, request, requested_payout
from tests.support.provider_by_hand import CONFIRMED, recorded, said
from tests.support.rows import add_event, add_movement, add_organization, add_reservation, instant
from tests.support.settled import MARCH, settle
from tests.support.sql_statements import begin_month, execute, refusal
from tests.support.statements import close, state
from ticketflow_orch.closing.currency_replacement import replace_currency
from ticketflow_orch.closing.currency_terms import Terms, Whose
from ticketflow_orch.db.engine import connect_engine, transaction
from ticketflow_orch.db.installation import read_installation
from ticketflow_orch.db.roles import grants
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.installation.deciding import change
from ticketflow_orch.jobs.claims import sweep
from ticketflow_orch.jobs.firings import Firing
from ticketflow_orch.jobs.run_once import run_once
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.monitoring.passed_alerts import resolve_passed
from ticketflow_orch.monitoring.retention import STEPS, RetentionRules
from ticketflow_orch.outbox import admin
from ticketflow_orch.outbox.alerts import Alert, alert_once, repeat_alerts, resolve_by_hand, standing
from ticketflow_orch.outbox.backlog import read_backlog
from ticketflow_orch.outbox.delivery.handlers import EventKind, Rendered
from ticketflow_orch.payouts.actions import Selection, hold, release, return_payout
from ticketflow_orch.payouts.parking import park, unpark
from ticketflow_orch.settlement import IncompleteSettlementError, invariants
from ticketflow_orch.settlement.anomalies import accept
from ticketflow_orch.settlement.preview import dry_run
from ticketflow_orch.ticketing.events import close_events
from ticketflow_orch.ticketing.lifecycle import LifecycleRules
from ticketflow_orch.ticketing.reminders import ReminderRules, send_reminders
from ticketflow_orch.ticketing.reservations import expire_reservations


@contextmanager
def as_runs(url: URL) -> Iterator[Engine]:
    """An engine whose sessions carry the role of runs."""
    owner = connect_engine(url, "pytest owner", connections=1)
    with owner.begin() as connection:
        connection.exec_driver_sql(grants())
    owner.dispose()
    restricted = connect_engine(url.update_query_dict({"options": "-c role=ticketflow_run"}), "pytest restricted")
    try:
        yield restricted
    finally:
        restricted.dispose()


@pytest.fixture
def restricted(url: URL) -> Iterator[Engine]:
    with as_runs(url) as restricted:
        yield restricted


@pytest.fixture(scope="session")
def untouched(server: EmbeddedServer) -> Iterator[Engine]:
    """One database for all that is refused."""
    with fresh_database(server) as url, as_runs(url) as restricted:
        yield restricted


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
        assert invariants.dishonest_organizations(connection, MARCH).count == 0
        assert invariants.missing_guards(connection) == ()


def test_the_role_of_runs_gives_up_a_pass_on_which_too_many_fail(engine: Engine, restricted: Engine) -> None:
    poisoned = add_organization(engine)
    for _ in range(3):
        add_movement(engine, poisoned, 2**62, "2026-03-10T10:00")
    add_movement(engine, add_organization(engine), 100, "2026-03-10T10:00")
    with pytest.raises(IncompleteSettlementError, match=r"0 organizations are parked in 2026-03 and .* fails too"):
        settle(restricted, chunk_size=1, workers=1, parked_limit=0)
    assert len(settle(restricted, parked_limit=1).parked) == 1


@pytest.mark.every_server
def test_the_role_of_runs_closes_months_and_parks(engine: Engine, restricted: Engine) -> None:
    organization = add_organization(engine, external_ref="theatre")
    add_movement(engine, organization, 100_000, "2026-01-10T10:00")
    add_opening_balance(engine, organization, -300, "USD")
    settle_and_close(restricted, JANUARY)
    add_payout(engine, organization, JANUARY, "REJECTED")
    settle_and_close(restricted, FEBRUARY)
    assert balances(engine, "currency", "opening", "returned", "payable") == [
        ("EUR", 0, 0, 88_000), ("EUR", 0, 88_000, 88_000), ("USD", -300, 0, 0), ("USD", -300, 0, 0),
    ]  # fmt: skip
    with engine.connect() as connection:
        roles = set(connection.execute(text("SELECT closed_role FROM settlement_period")).scalars())
    assert roles == {"postgres as ticketflow_run"}
    assert park(restricted, "theatre", "disputed", "ana", JANUARY).month == MARCH
    assert "(role " in unpark(restricted, "theatre", "ana").parked_by
    assert breaches(restricted) == []
    assert dry_run(restricted, MARCH, now=NOW, first_month=JANUARY).entries == 1


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
        assert alert_once(connection, Alert("WorkOverdue", "one", {}), at)
        assert not alert_once(connection, Alert("WorkOverdue", "two", {}, "one"), at)
        assert sweep(connection) == ()
        assert repeat_alerts(connection, at) == 0
        resolve_passed(connection, at)
        [alert] = standing(connection)
        assert resolve_by_hand(connection, alert.id, at, "me").occurrences == 2
    with engine.begin() as connection:
        connection.execute(text("UPDATE job_firing SET fired_at = '2020-01-01Z'"))
    pruned = {what: step(restricted, RetentionRules(timedelta(days=90), ["any"])) for what, step in STEPS.items()}
    assert (pruned["firings"], pruned["claims"]) == (1, 1)


@pytest.mark.every_server
def test_the_role_of_runs_states_a_month_and_mails_it(engine: Engine, restricted: Engine, tmp_path: Path) -> None:
    organization = add_organization(engine, contact_email="finance@example.com")
    add_movement(engine, organization, 100_000, "2026-03-10T10:00")
    close(engine, MARCH)
    stated = state(restricted, tmp_path, mail_from=instant("2026-01-01T00:00"))
    assert (stated.statements, stated.mails) == (1, 1)


def test_the_role_of_runs_pays_and_does_what_people_decide(engine: Engine, restricted: Engine) -> None:
    reference = requested_payout(engine)
    with transaction(restricted) as connection:
        hold(connection, reference, "asked by the bank", "ana")
    assert release(restricted, Selection(reference=reference), "eva") == 1
    recorded(restricted, "DELIVERED", said(CONFIRMED))
    with transaction(restricted) as connection:
        return_payout(connection, reference, "IBAN closed", "eva")
    owing(engine, 1_000_000, MARCH.next())
    assert request(restricted, MARCH.next()).held == 1


@pytest.mark.every_server
def test_the_role_of_runs_searches_for_anomalies_holds_payouts_and_accepts(engine: Engine, restricted: Engine) -> None:
    hall = add_organization(engine, external_ref="hall")
    won_twice(engine, hall)
    settle_and_close(restricted, MARCH)
    assert request(restricted).anomalous == 1
    park(restricted, "hall", "disputed", "ana", JANUARY)
    unpark(restricted, "hall", "ana")
    assert release(restricted, Selection(MARCH), "eva", anomalies=True) == 1
    assert park(restricted, "hall", "disputed", "ana", JANUARY).held == 1
    assert unpark(restricted, "hall", "ana").released == 1
    won_twice(engine, hall)
    [(_, movement, _)] = found(engine)
    with transaction(restricted) as connection:
        assert accept(connection, [movement], "eva") == 1


@pytest.mark.every_server
def test_the_role_of_runs_delivers_and_decides_about_events(engine: Engine, restricted: Engine) -> None:
    for name in ("taken", "gone", "rejected"):
        add(engine, name)
    answers = {"taken": DELIVERED, "gone": GONE, "rejected": REJECTED}
    to = delivery(Receiver(lambda message: answers[message.payload["name"]]), remembers=timedelta(hours=1))
    run(
        restricted,
        to,
        {"Told": EventKind(preparer=lambda _, messages: {one.event_id: Rendered(b"x") for one in messages})},
    )
    assert set(states(engine).values()) <= {"DELIVERED", "PENDING", "DEAD"}
    with transaction(restricted) as connection:
        admin.resume(connection, "DESTINATION", "there")
        admin.redrive(connection, admin.Choice(event_types=("Told",)))
        assert read_backlog(connection).dead == 0


def test_the_role_of_runs_replaces_no_currency(engine: Engine, restricted: Engine) -> None:
    add_organization(engine, external_ref="theatre", currency="BGN")
    with pytest.raises(TicketflowError, match="This database role may not replace a currency"):
        replace_currency(restricted, Whose("theatre"), Terms.parse("2026-03", "EUR", "1.95583"), "ana")


PERIOD = "settlement_period (month, state, settled_at, settled_by, closed_at, closed_by, closed_role)"
EVENT = "outbox_event (aggregate_type, aggregate_id, event_type, payload, dedupe_key, occurred_at"


@pytest.mark.every_server
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE ledger_entry SET net = 0",
        "DELETE FROM ledger_entry",
        "TRUNCATE ledger_entry",
        "ALTER TABLE ledger_entry DISABLE TRIGGER ALL",
        "ALTER TABLE ledger_entry ENABLE ROW LEVEL SECURITY",
        "DROP TABLE ledger_entry",
        "DROP TRIGGER ledger_entry_append_only ON ledger_entry",
        "CREATE INDEX mine ON ledger_entry (net)",
        "CREATE RULE mine AS ON INSERT TO ledger_entry DO INSTEAD NOTHING",
        "CREATE TRIGGER mine BEFORE INSERT ON ledger_entry EXECUTE FUNCTION refuse('no')",
        "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        "ALTER FUNCTION refuse() RESET search_path",
        "DROP FUNCTION outbox_prune(timestamptz, bigint)",
        "INSERT INTO money_movement (amount) VALUES (1)",
        "UPDATE money_movement SET amount = 1",
        "DELETE FROM money_movement",
        "SELECT setval('money_movement_id_seq', 1)",
        "MERGE INTO ledger_entry USING (VALUES (1)) AS one (x) ON true WHEN MATCHED THEN DELETE",
        "WITH gone AS (DELETE FROM money_movement RETURNING id) SELECT id FROM gone",
        "INSERT INTO settlement_window VALUES ('2026-03-01', 'UTC', '2026-03-01Z', '2026-04-01Z')"
        " ON CONFLICT (month, timezone) DO UPDATE SET ends_at = excluded.ends_at",
        "UPDATE organization SET commission_rate_bps = 0",
        "UPDATE organization SET timezone = 'UTC'",
        "INSERT INTO organization (name) VALUES ('mine')",
        "UPDATE currency SET payout_minimum = 0",
        "UPDATE reservation SET quantity = 1",
        "UPDATE event SET ends_at = ends_at",
        "DELETE FROM reminder",
        "DELETE FROM alert",
        "UPDATE alert SET group_id = NULL",
        "DELETE FROM alert_group",
        "UPDATE alert_group SET severity = 'INFO'",
        "UPDATE payout SET amount = 1",
        "DELETE FROM payout",
        "UPDATE payout SET anomalies_to = NULL",
        "DELETE FROM movement_anomaly",
        "DELETE FROM settlement_period",
        "INSERT INTO settlement_pass (month, pass, cutoff, state) VALUES ('2026-03-01', 1, 1, 'DONE')",
        "INSERT INTO settlement_chunk (month, pass, origin_month, low_id, state)"
        " VALUES ('2026-03-01', 1, '2026-03-01', 1, 'DONE')",
        "INSERT INTO payout (organization_id, currency, month, amount, state, answered_at)"
        " VALUES (1, 'EUR', '2026-03-01', 1, 'CONFIRMED', now())",
        "DELETE FROM anomaly_search",
        f"INSERT INTO {PERIOD} VALUES ('2026-03-01', 'CLOSED', now(), 'me', now(), 'me', 'me')",
        "TRUNCATE settlement_period CASCADE",
        "DELETE FROM settlement_pass",
        "UPDATE organization_balance SET payable = 0",
        "DELETE FROM organization_balance",
        "UPDATE opening_balance SET amount = 1",
        "INSERT INTO opening_balance (organization_id, currency, amount) VALUES (1, 'EUR', 1)",
        "INSERT INTO organization_currency (organization_id, from_month) VALUES (1, '2026-03-01')",
        "UPDATE settlement_window SET ends_at = starts_at",
        "UPDATE installation SET auto_close = true",
        "DELETE FROM installation",
        "DELETE FROM installation_change",
        "UPDATE statement_mail SET outbox_event_id = gen_random_uuid()",
        "DELETE FROM statement_mail",
        "DELETE FROM late_capture",
        "DELETE FROM outbox_event",
        "UPDATE outbox_event SET payload = '{}'",
        "UPDATE outbox_event SET dedupe_key = 'other'",
        f"INSERT INTO {EVENT}, state) VALUES ('a', 'b', 'EventClosed', '{{}}', 'k', now(), 'HELD')",
        f"INSERT INTO {EVENT}, body) VALUES ('a', 'b', 'EventClosed', '{{}}', 'k', now(), 'bytes')",
        "INSERT INTO outbox_event_type VALUES ('Mine')",
        "UPDATE installation SET payouts_from = '2020-01-01'",
        "UPDATE alembic_version SET version_num = '0001'",
        "SET session_replication_role = replica",
        "CREATE TABLE mine (id bigint)",
        "CREATE SCHEMA mine",
        "CREATE FUNCTION mine() RETURNS integer LANGUAGE sql RETURN 1",
        "CREATE TEMPORARY TABLE settlement_period (month date)",
        "CREATE TEMPORARY VIEW settlement_period AS SELECT CAST('2026-03-01' AS date) AS month, 'OPEN' AS state",
        "SELECT 1 AS id INTO TEMPORARY outbox_event",
        "CREATE TABLE pg_temp.organization (id bigint)",
        "CREATE TEMPORARY SEQUENCE money_movement_id_seq",
        "COPY (SELECT 1) TO PROGRAM 'true'",
    ],
)
def test_the_role_of_runs_cannot_rewrite_money_or_what_guards_it(untouched: Engine, statement: str) -> None:
    with (
        pytest.raises(ProgrammingError, match=r"permission denied|must be owner|must be superuser"),
        untouched.begin() as connection,
    ):
        connection.execute(text(statement))


@pytest.mark.parametrize("kind", ["PaymentAfterExpiry", "Told", "payoutrequested"])
def test_the_role_of_runs_writes_events_of_its_own_types_only(restricted: Engine, kind: str) -> None:
    row = f"INSERT INTO {EVENT}) VALUES ('a', 'b', '{kind}', '{{}}', 'k', now())"
    assert f"{kind} is no type of event that ticketflow_run may write" in refusal(restricted, row)
    assert execute(restricted, row.replace(kind, "EventClosed")) == 1


def test_the_role_of_runs_asks_for_no_money_that_is_not_owed(engine: Engine, restricted: Engine) -> None:
    owing(engine)
    forged = f"""
        INSERT INTO {EVENT})
        SELECT 'payout', CAST(gen_random_uuid() AS text), 'PayoutRequested', jsonb_build_object('amount', 99999999),
            'PayoutRequested:1', now()
    """
    assert "asks for what its event says" in refusal(restricted, forged)


def test_the_role_of_runs_deletes_no_event_that_is_young_or_not_ended(engine: Engine, restricted: Engine) -> None:
    add(engine, "pending")
    assert "stays in the outbox" in refusal(restricted, "SELECT outbox_prune(clock_timestamp(), 10)")
    execute(restricted, "SELECT outbox_prune(now() - interval '90 days', 10)")
    assert states(engine) == {"pending": "PENDING"}


def test_the_role_of_runs_makes_no_event_old_enough_to_be_deleted(engine: Engine, restricted: Engine) -> None:
    add(engine, "sent")
    claim = "UPDATE outbox_event SET state = 'INFLIGHT', owner = 'me', lease_until = now(), attempts = 1"
    end = "UPDATE outbox_event SET state = 'DELIVERED', owner = NULL, lease_until = NULL, available_at = NULL, ended_at"
    execute(restricted, claim)
    assert "which is past" in refusal(restricted, f"{end} = '2020-01-01Z'")
    execute(restricted, f"{end} = clock_timestamp()")
    assert "which is past" in refusal(restricted, "UPDATE outbox_event SET ended_at = '2020-01-01Z'")


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        (
            "UPDATE opening_balance SET balance_month = '2020-01-01'",
            "month 2020-01 takes nothing in from opening_balance",
        ),
        (
            "UPDATE payout SET state = 'REJECTED', answered_at = now(), returned_month = '2026-03-01'",
            "month 2026-03 takes nothing in from payout",
        ),
        ("UPDATE anomaly_search SET searched_to = 1000000", "no settlement has read to 1000000"),
        (
            "UPDATE settlement_period SET month = '2020-01-01' WHERE month = '2026-04-01'",
            "a settlement period is of one month for good",
        ),
    ],
)
def test_the_role_of_runs_says_of_nothing_that_it_was_dealt_with_when_it_was_not(
    engine: Engine, restricted: Engine, statement: str, sentence: str
) -> None:
    requested_payout(engine)
    begin_month(engine, "2026-04-01")
    add_opening_balance(engine, 1, 50_000, "USD")
    assert sentence in refusal(restricted, statement)


def test_the_role_of_runs_reads_what_is_decided_and_is_told_who_may_change_it(restricted: Engine) -> None:
    with restricted.connect() as connection:
        assert read_installation(connection).auto_close
    with pytest.raises(TicketflowError, match="name the owner of the schema"):
        change(restricted, "auto_close", "false", "ana")


def test_nobody_lets_a_table_of_their_own_tell_of_captures(engine: Engine, restricted: Engine) -> None:
    execute(engine, f"GRANT TEMPORARY ON DATABASE {engine.url.database} TO ticketflow_run")
    with restricted.begin() as connection:
        connection.execute(text("CREATE TEMPORARY TABLE mine (LIKE money_movement)"))
        with pytest.raises(ProgrammingError, match="permission denied for function money_movement_late_capture"):
            connection.execute(
                text("""
                    CREATE TRIGGER forged AFTER INSERT ON mine FOR EACH ROW
                    EXECUTE FUNCTION money_movement_late_capture()
                """)
            )
        connection.rollback()
