"""What was mailed and reported before a restore comes again under the same ids, and what is another thing does not."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

from sqlalchemy import Engine

from tests.mail.relayed import kinds_at
from tests.support.folders import story, write_folder
from tests.support.payable import MARCH, NOW, rows
from tests.support.payments import IMPATIENT, delivery
from tests.support.restoring import LATER, backup
from tests.support.rows import add_event, add_movement, add_organization, add_reservation, instant
from tests.support.sinks.http_receiver import HttpReceiver
from tests.support.sinks.smtp_server import SmtpServer, message_ids
from tests.support.sql_statements import execute
from tests.support.statements import close, state
from ticketflow_orch.db.engine import transaction
from ticketflow_orch.event_handlers import KINDS
from ticketflow_orch.importing import import_folder
from ticketflow_orch.jobs.bad_rows import alert_of
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.months import Month
from ticketflow_orch.outbox.alerts import alert_once
from ticketflow_orch.outbox.delivery.configuration import Delivery
from ticketflow_orch.outbox.relay import drain
from ticketflow_orch.ticketing.events import close_events
from ticketflow_orch.ticketing.lifecycle import LifecycleRules
from ticketflow_orch.ticketing.reminders import ReminderRules, send_reminders
from ticketflow_orch.ticketing.reservations import expire_reservations

START = instant("2026-04-20T18:00")
EVENING = START - timedelta(hours=24)
PAST = EVENING - timedelta(days=1)
DELIVERY = """
[destinations.application]
transport = "webhook"
url = "{url}"
secrets = ["PAYMENT_SECRET"]
allow_private = true

[destinations.mail]
transport = "smtp"
host = "127.0.0.1"
port = {port}
security = "none"

[routes.default]
destination = "application"

[routes.ReminderDue]
destination = "mail"

[routes.StatementReady]
destination = "mail"
"""
MAILED, REPORTED = 4, 6


def add_season(engine: Engine) -> None:
    """All that jobs tell and mail, to come: two statements, two reminders, an evening that is over."""
    for name in ("hall", "club"):
        hall = add_organization(engine, external_ref=name, contact_email=f"{name}@example.com")
        add_movement(engine, hall, 100_000, "2026-03-10T10:00")
    over = {"starts_at": START - timedelta(days=9), "ends_at": START - timedelta(days=8)}
    ended = add_event(engine, hall, external_ref="over", **over)
    add_reservation(engine, ended, public_ref="held", expires_at=EVENING + timedelta(days=9))
    evening = add_event(engine, hall, external_ref="evening", starts_at=START, ends_at=START + timedelta(hours=2))
    add_reservation(engine, evening, public_ref="late", expires_at=PAST)
    add_reservation(engine, evening, public_ref="stuck", payment_started_at=PAST, expires_at=PAST)
    for name in ("ana", "eva"):
        bought = {"status": "CONFIRMED", "confirmed_at": instant("2026-04-01T10:00")}
        add_reservation(engine, evening, public_ref=name, buyer_email=f"{name}@example.com", **bought)
    send_reminders(engine, ReminderRules(now=START - timedelta(days=60), kinds={"24h": timedelta(hours=24)}))


def work(engine: Engine, folder: Path, now: datetime) -> None:
    """What the schedules do at `now`, and what the application does meanwhile."""
    rules = LifecycleRules(now=now, run_id=f"run at {now}")
    close_events(engine, rules)
    expire_reservations(engine, rules)
    send_reminders(engine, ReminderRules(now=now, kinds={"24h": timedelta(hours=24)}))
    [(hall, late)] = rows(engine, "SELECT organization_id, reservation.id FROM reservation JOIN event "
        "ON event.id = event_id WHERE public_ref = 'late'")  # fmt: skip
    add_movement(engine, hall, 5_000, "2026-04-19T17:00", external_ref="paid too late", reservation_id=late)
    close(engine, MARCH)
    state(engine, folder / "statements", mail_from=instant("2026-01-01T00:00"))


def deliver(engine: Engine, to: Delivery) -> None:
    """Send everything there is; reminders are rendered as on the evening before."""
    drain(engine, to, {**KINDS, **kinds_at(EVENING)}, budget=120, backoff=IMPATIENT)
    to.close()
    assert rows(engine, "SELECT state, count(*) FROM outbox_event GROUP BY 1") == [("DELIVERED", MAILED + REPORTED)]


def test_what_was_told_and_mailed_before_a_restore_comes_again_under_the_same_ids(
    server: EmbeddedServer, engine: Engine, tmp_path: Path
) -> None:
    add_season(engine)
    with HttpReceiver() as application, SmtpServer() as mail_server, backup(server, engine) as restored:
        path = tmp_path / "delivery.toml"
        path.write_text(DELIVERY.format(url=application.url, port=mail_server.port), "utf-8")
        for number, each in enumerate((engine, restored)):
            folder = tmp_path / str(number)
            folder.mkdir()
            work(each, folder, EVENING + number * LATER)
            deliver(each, delivery(path))
        assert list(application.applied.values()) == [2] * REPORTED
        sent = message_ids(mail_server)
        assert len(sent) == 2 * MAILED
        assert len(set(sent)) == MAILED
        keys = "SELECT event_id, dedupe_key FROM outbox_event ORDER BY 2"
        assert rows(restored, keys) == rows(engine, keys)


def test_an_import_that_is_repeated_after_a_restore_brings_the_same_events(
    server: EmbeddedServer, engine: Engine, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "import", story())
    with backup(server, engine) as restored:
        add_event(restored, add_organization(restored))
        for each in (engine, restored):
            import_folder(each, folder, Month(2025, 1))
        known = "SELECT external_ref, public_id FROM event WHERE external_ref LIKE 'e_' ORDER BY 1"
        assert rows(restored, known) == rows(engine, known)


def test_a_row_that_is_left_out_is_told_of_by_its_name(server: EmbeddedServer, engine: Engine) -> None:
    with backup(server, engine) as restored:
        for each, name in ((engine, "gala"), (restored, "opera")):
            bad = add_event(each, add_organization(each), external_ref=name, ends_at=instant("2026-06-01T20:00"))
            execute(each, "ALTER TABLE outbox_event ADD CHECK (event_type <> 'EventClosed')")
            [left_out] = close_events(each, LifecycleRules(now=instant("2026-06-02T00:00"), run_id="run")).bad
            assert (left_out.id, left_out.name) == (bad, name)
            with transaction(each) as connection:
                alert_once(connection, alert_of("close_events", left_out), NOW)
        alerted = "SELECT event_id, payload ->> 'row' FROM outbox_event WHERE event_type = 'RowLeftOut'"
        [(before, gala)], [(after, opera)] = rows(engine, alerted), rows(restored, alerted)
        assert (gala, opera) == ("gala", "opera")
        assert before != after
