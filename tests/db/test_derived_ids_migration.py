"""A database whose ids were made by chance is migrated: what is there keeps its names, and nothing is alerted twice."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, text

from tests.conftest import fresh_database
from tests.support.payable import MARCH, NOW, pay_from, request, rows
from tests.support.rows import instant
from tests.support.sql_statements import execute
from ticketflow_orch.db.engine import connect_engine, transaction
from ticketflow_orch.db.migrate import migrate
from ticketflow_orch.jobs.bad_rows import alert_of
from ticketflow_orch.jobs.batches import BadRow
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.outbox.alerts import alert_once
from ticketflow_orch.payouts import actions
from ticketflow_orch.payouts.actions import Selection
from ticketflow_orch.payouts.references import shared_references
from ticketflow_orch.statements.mail_queue import queue_mails
from ticketflow_orch.ticketing.events import close_events
from ticketflow_orch.ticketing.lifecycle import LifecycleRules
from ticketflow_orch.ticketing.reminders import ReminderRules, send_reminders

pytestmark = pytest.mark.every_server

REVISION = "0014"
START = instant("2026-04-20T18:00")

# What the version before wrote: two payouts that were paid, one requested, one held; events on their way and alerts.
OLD = """
INSERT INTO organization (id, external_ref, name, timezone, currency, commission_rate_bps, commission_tax_bps,
    joined_on, contact_email)
SELECT number, 'org-' || number, 'Hall', 'UTC', 'EUR', 0, 0, '2020-01-01', 'hall@example.com'
FROM generate_series(1, 4) AS number;
INSERT INTO settlement_period (month, state, settled_at, settled_by, closed_at, closed_by, closed_role)
VALUES ('2026-03-01', 'CLOSED', now(), 'test', now(), 'test', 'test');
INSERT INTO settlement_window (month, timezone, starts_at, ends_at)
VALUES ('2026-03-01', 'UTC', '2026-03-01Z', '2026-04-01Z');
INSERT INTO ledger_entry (organization_id, month, currency, origin_month, sequence, captures, refunds, chargebacks,
    fees, commission, commission_tax, net, settlement_pass)
SELECT id, '2026-03-01', 'EUR', '2026-03-01', 0, 1000, 0, 0, 0, 0, 0, 1000, 1 FROM organization;
INSERT INTO organization_balance (organization_id, currency, month, opening, net, returned, due, payable, closing)
SELECT id, 'EUR', '2026-03-01', 0, 1000, 0, 1000, 1000, 0 FROM organization;
INSERT INTO payout (organization_id, currency, month, amount, state, provider_ref, answered_at)
SELECT id, 'EUR', '2026-03-01', 1000, (ARRAY['CONFIRMED', 'CONFIRMED', 'REQUESTED', 'HELD'])[id],
    CASE WHEN id < 3 THEN 'po_1' END, CASE WHEN id < 3 THEN now() END FROM organization;
INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload, dedupe_key, occurred_at, state,
    available_at, ended_at)
SELECT 'payout', CAST(public_id AS text), 'PayoutRequested', '{}', 'PayoutRequested:' || public_id, now(),
    CASE WHEN organization_id < 3 THEN 'DELIVERED' ELSE 'PENDING' END,
    CASE WHEN organization_id = 3 THEN now() END, CASE WHEN organization_id < 3 THEN now() END
FROM payout WHERE state <> 'HELD';
INSERT INTO statement_mail (organization_id, currency, month, outbox_event_id)
SELECT id, 'EUR', '2026-03-01', new_event_id() FROM organization;
INSERT INTO outbox_event (event_id, aggregate_type, aggregate_id, event_type, payload, dedupe_key, occurred_at)
SELECT outbox_event_id, 'statement', 'org-' || organization_id || ':EUR:2026-03', 'StatementReady', '{}',
    'StatementReady:org-' || organization_id || ':EUR:2026-03', now()
FROM statement_mail;
INSERT INTO event (id, external_ref, organization_id, title, status, starts_at, ends_at, timezone) VALUES
    (1, 'bad', 1, 'Gala', 'OPEN', '2026-04-01Z', '2026-04-02Z', 'UTC'),
    (2, 'evening', 1, 'Gala', 'OPEN', '2026-04-20 18:00Z', '2026-04-20 20:00Z', 'UTC');
INSERT INTO reservation (id, public_ref, event_id, buyer_email, quantity, status, created_at, expires_at, confirmed_at)
VALUES (1, 'ana', 2, 'ana@example.com', 1, 'CONFIRMED', '2026-03-01Z', '2026-03-01Z', '2026-03-01Z');
INSERT INTO reminder_kind (kind, lead, enabled_at) VALUES ('24h', '24 hours', '2026-01-01Z');
INSERT INTO reminder (reservation_id, kind, event_date, state, outbox_event_id)
VALUES (1, '24h', '2026-04-20', 'QUEUED', new_event_id());
INSERT INTO outbox_event (event_id, aggregate_type, aggregate_id, event_type, payload, dedupe_key, occurred_at)
SELECT outbox_event_id, 'reservation', 'ana', 'ReminderDue', '{}', 'ReminderDue:ana:24h:2026-04-20', now()
FROM reminder;
INSERT INTO alert (kind, key) VALUES ('RowLeftOut', 'close_events 1'), ('RowLeftOut', '2026-03 org-1 EUR');
"""

EVERYTHING = "SELECT id, event_id, dedupe_key, state, occurred_at FROM outbox_event ORDER BY id"


@pytest.fixture
def old(server: EmbeddedServer) -> Iterator[Engine]:
    """A database of the version before, with work done and work in progress."""
    with fresh_database(server, "template1") as url:
        migrate(url, REVISION)
        engine = connect_engine(url, "pytest", connections=5)
        with engine.begin() as connection:
            # None of this is what a run does.
            connection.execute(text("SET LOCAL session_replication_role = replica"))
            connection.execute(text(OLD))
        yield engine
        engine.dispose()


def migrated(engine: Engine) -> list[tuple[Any, ...]]:
    """Migrate; what the outbox held before."""
    before = rows(engine, EVERYTHING)
    engine.dispose()
    assert migrate(engine.url)
    return before


def test_what_is_there_keeps_its_ids_and_keys(old: Engine) -> None:
    payouts = rows(old, "SELECT id, public_id FROM payout ORDER BY id")
    assert migrated(old) == rows(old, EVERYTHING)
    assert rows(old, "SELECT id, public_id FROM payout ORDER BY id") == payouts


def test_no_cause_that_has_an_event_gets_another(old: Engine) -> None:
    before = migrated(old)
    pay_from(old, MARCH)
    assert request(old).existing == 4
    assert queue_mails(old, MARCH, now=NOW, mail_from=instant("2026-01-01T00:00"), chunk_size=10).new == 0
    assert (
        send_reminders(old, ReminderRules(now=START - timedelta(hours=24), kinds={"24h": timedelta(hours=24)})).queued
        == 0
    )
    assert rows(old, EVERYTHING) == before


def test_a_row_that_was_told_of_by_its_number_is_not_told_again_by_its_name(old: Engine) -> None:
    migrated(old)
    execute(old, "ALTER TABLE outbox_event ADD CHECK (event_type <> 'EventClosed') NOT VALID")
    [bad] = close_events(old, LifecycleRules(now=NOW, run_id="run")).bad
    assert bad == BadRow(1, bad.error, "bad")
    with transaction(old) as connection:
        assert not alert_once(connection, alert_of("close_events", bad), NOW)


def test_a_payout_that_was_held_is_released_under_the_reference_it_has(old: Engine) -> None:
    [(reference,)] = rows(old, "SELECT public_id FROM payout WHERE state = 'HELD'")
    before = migrated(old)
    assert actions.release(old, Selection(MARCH), "ana") == 1
    [*same, (_, _, key, state_now, _)] = rows(old, EVERYTHING)
    assert same == before
    assert (key, state_now) == (f"PayoutRequested:{reference}", "PENDING")


def test_references_that_two_payouts_shared_before_are_listed(old: Engine) -> None:
    migrated(old)
    with old.connect() as connection:
        assert [(one.provider_ref, len(one.payouts)) for one in shared_references(connection, 10)] == [("po_1", 2)]


def test_a_migration_that_was_interrupted_is_completed(old: Engine) -> None:
    migrate(old.url, "0016")
    execute(old, "UPDATE alembic_version SET version_num = '0015'")
    execute(old, "DROP TRIGGER payout_derived ON payout")
    old.dispose()
    assert migrate(old.url)
    assert rows(old, "SELECT count(*) FROM pg_trigger WHERE tgname = 'payout_derived'") == [(1,)]
