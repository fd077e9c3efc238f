"""The role of runs may do what the code does, and nothing that would let a fault in it rewrite money."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import ProgrammingError

from tests.books import (
    FEBRUARY,
    JANUARY,
    add_opening_balance,
    add_payout,
    balances,
    breaches,
    settle_and_close,
)
from tests.monthly_statements.books import close, state
from tests.payable import NOW, owing, request, requested_payout
from tests.relay.world import DELIVERED, GONE, REJECTED, Receiver, add, delivery, run, states
from tests.rows import add_event, add_movement, add_organization, add_reservation, instant
from tests.test_payouts_answers import CONFIRMED, recorded, said
from tests.test_settlement import MARCH, settle
from ticketflow_orch import audit, outbox_desk
from ticketflow_orch.alerts import Alert, alert_once
from ticketflow_orch.currencies.replacing import replace_currency
from ticketflow_orch.currencies.terms import Terms, Whose
from ticketflow_orch.database import connect_engine, transaction
from ticketflow_orch.delivery.preparing import EventKind, Rendered
from ticketflow_orch.errors import InputError
from ticketflow_orch.executions import sweep
from ticketflow_orch.firings import Firing
from ticketflow_orch.lifecycle import LifecycleRules, close_events, expire_reservations
from ticketflow_orch.outbox_backlog import read_backlog
from ticketflow_orch.parking import park, unpark
from ticketflow_orch.payouts.decisions import Selection, hold, release, return_payout
from ticketflow_orch.reminders import ReminderRules, send_reminders
from ticketflow_orch.retention import RetentionRules, prune
from ticketflow_orch.scheduled_work import run_once
from ticketflow_orch.settlement import IncompleteSettlementError
from ticketflow_orch.settlement.dry_run import dry_run

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
        assert sweep(connection) == ()
    with engine.begin() as connection:
        connection.execute(text("UPDATE job_firing SET fired_at = '2020-01-01Z'"))
    pruned = prune(restricted, RetentionRules(timedelta(days=90), ["any"]))
    assert (pruned.firings, pruned.claims) == (1, 1)


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
    assert release(restricted, Selection(reference=reference), "eva", NOW) == 1
    recorded(restricted, "DELIVERED", said(CONFIRMED))
    with transaction(restricted) as connection:
        return_payout(connection, reference, "IBAN closed", "eva")
    owing(engine, 1_000_000, MARCH.next())
    assert request(restricted, MARCH.next()).held == 1


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
        outbox_desk.resume(connection, "DESTINATION", "there")
        outbox_desk.redrive(connection, outbox_desk.Choice(event_types=("Told",)))
        assert read_backlog(connection).dead == 0


def test_the_role_of_runs_replaces_no_currency(engine: Engine, restricted: Engine) -> None:
    add_organization(engine, external_ref="theatre", currency="BGN")
    with pytest.raises(InputError, match="This database role may not replace a currency"):
        replace_currency(restricted, Whose("theatre"), Terms.parse("2026-03", "EUR", "1.95583"), "ana")


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
        "UPDATE payout SET amount = 1",
        "DELETE FROM payout",
        "DELETE FROM settlement_period",
        "UPDATE organization_balance SET payable = 0",
        "DELETE FROM organization_balance",
        "UPDATE opening_balance SET amount = 1",
        "INSERT INTO opening_balance (organization_id, currency, amount) VALUES (1, 'EUR', 1)",
        "INSERT INTO organization_currency (organization_id, from_month) VALUES (1, '2026-03-01')",
        "UPDATE settlement_window SET ends_at = starts_at",
        "SET session_replication_role = replica",
    ],
)
def test_the_role_of_runs_cannot_rewrite_money(restricted: Engine, statement: str) -> None:
    with pytest.raises(ProgrammingError, match=r"permission denied|must be owner"), restricted.begin() as connection:
        connection.execute(text(statement))


def test_nobody_lets_a_table_of_their_own_tell_of_captures(restricted: Engine) -> None:
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
