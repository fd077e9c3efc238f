"""A database that is restored, or a standby that lost the last seconds, works again: nobody gets anything twice.

Receivers tell what they have by ids alone, so what is the same thing must have the same id, and another thing another.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from email import message_from_bytes
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from tests.conftest import fresh_database
from tests.support.folders import story, write_folder
from tests.support.payable import MARCH, NOW, close_with, request, rows
from tests.support.payments import IMPATIENT, configuration, delivery, pay, states
from tests.support.provider import Provider
from tests.support.provider_by_hand import recorded, said
from tests.support.rows import add_event, add_movement, add_organization, add_reservation, instant
from tests.support.sinks.http_receiver import HttpReceiver
from tests.support.sinks.smtp_server import SmtpServer
from tests.support.sql_statements import execute, refusal
from tests.support.statements import close, state
from ticketflow_orch.db.engine import connect_engine, transaction
from ticketflow_orch.db.installation import read_installation, require_agreement
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.event_handlers import KINDS
from ticketflow_orch.importing import import_folder
from ticketflow_orch.jobs.bad_rows import alert_of
from ticketflow_orch.local import postgres_places
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.mail.message import MailOptions
from ticketflow_orch.mail.reminders import prepare_reminders
from ticketflow_orch.monitoring.health import problems
from ticketflow_orch.monitoring.snapshot import read_situation
from ticketflow_orch.months import Month
from ticketflow_orch.outbox.alerts import alert_once
from ticketflow_orch.outbox.delivery.configuration import Delivery
from ticketflow_orch.outbox.delivery.handlers import EventKind
from ticketflow_orch.outbox.relay import drain
from ticketflow_orch.payouts import actions
from ticketflow_orch.payouts.actions import Selection
from ticketflow_orch.payouts.queries import payouts
from ticketflow_orch.settings import Settings
from ticketflow_orch.ticketing.events import close_events
from ticketflow_orch.ticketing.lifecycle import LifecycleRules
from ticketflow_orch.ticketing.reminders import ReminderRules, send_reminders
from ticketflow_orch.ticketing.reservations import expire_reservations

NAMES = [f"org-{number:03}" for number in range(6)]
OWED = [(name, "EUR", 1_000 + number) for number, name in enumerate(NAMES)]
LATER = timedelta(hours=2)


@pytest.fixture
def provider(start_provider: Callable[..., Provider]) -> Provider:
    return start_provider()


@contextmanager
def backup(server: EmbeddedServer, engine: Engine) -> Iterator[Engine]:
    """An engine on a copy of the database as it is now."""
    engine.dispose()
    with fresh_database(server, str(engine.url.database)) as url:
        copy = connect_engine(url, "restored", connections=10)
        try:
            yield copy
        finally:
            copy.dispose()


def owe(engine: Engine, owed: Sequence[tuple[str, str, int]] = OWED, names: Sequence[str] = NAMES) -> None:
    """Close March with what is owed to the organizations of `names`, which are added in this order."""
    ids = {name: add_organization(engine, external_ref=name) for name in names}
    close_with(engine, [(ids[name], currency, amount) for name, currency, amount in owed])


def ask_and_pay(engine: Engine, provider: Provider, folder: Path, now: datetime = NOW, **route: object) -> None:
    """Request what March owes at `now`, and deliver it."""
    folder.mkdir(exist_ok=True)
    request(engine, now=now)
    pay(engine, delivery(configuration(provider, folder, **route)))


def health(engine: Engine) -> list[str]:
    situation = read_situation(engine, Settings(fixed_clock=NOW, first_month=str(MARCH)))
    return list(problems(situation, "Europe/Madrid", timedelta(days=300)))


# --- Payouts


@pytest.mark.every_server
def test_what_was_paid_before_a_restore_is_not_paid_again(
    server: EmbeddedServer, engine: Engine, provider: Provider, tmp_path: Path
) -> None:
    owe(engine)
    with backup(server, engine) as restored:
        ask_and_pay(engine, provider, tmp_path / "a")
        ask_and_pay(restored, provider, tmp_path / "b", NOW + LATER)
        assert states(restored) == states(engine) == {"CONFIRMED": 6}
        known = "SELECT public_id, provider_ref FROM payout ORDER BY 1"
        assert rows(restored, known) == rows(engine, known)
    assert provider.paid == OWED


def test_a_key_that_the_provider_has_forgotten_since_is_looked_up_before_it_is_used_again(
    server: EmbeddedServer, engine: Engine, start_provider: Callable[..., Provider], tmp_path: Path
) -> None:
    provider = start_provider(forget_after=0)
    owe(engine)
    with backup(server, engine) as restored:
        ask_and_pay(engine, provider, tmp_path / "a")
        ask_and_pay(restored, provider, tmp_path / "b", NOW + LATER)
        assert states(restored) == {"CONFIRMED": 6}
    assert provider.paid == OWED


def test_what_a_person_released_before_a_restore_is_asked_for_in_the_same_bytes_after_it(
    server: EmbeddedServer, engine: Engine, provider: Provider, tmp_path: Path
) -> None:
    owe(engine)
    request(engine, review_first=True)
    with backup(server, engine) as restored:
        for number, each in enumerate((engine, restored)):
            assert actions.release(each, Selection(MARCH), "ana") == 6
            ask_and_pay(each, provider, tmp_path / str(number), NOW + LATER)
        assert states(restored) == {"CONFIRMED": 6}
    assert provider.paid == OWED


@pytest.mark.parametrize(
    "answer",
    [
        ("hold", "127.0.0.1 answered 422 Unprocessable Entity."),
        ("look_up", "the provider answered about another amount: 1000 instead of 1700"),
    ],
    ids=["by its key", "by our reference"],
)
def test_a_month_that_was_closed_with_another_amount_before_ends_in_doubt_and_pays_nothing(
    server: EmbeddedServer,
    engine: Engine,
    provider: Provider,
    tmp_path: Path,
    answer: tuple[str, str],
) -> None:
    in_doubt, reason = answer
    with backup(server, engine) as restored:
        owe(engine)
        owe(restored, [("org-000", "EUR", 1_700), *OWED[1:]])
        ask_and_pay(engine, provider, tmp_path / "a")
        ask_and_pay(restored, provider, tmp_path / "b", in_doubt=in_doubt)
        assert states(restored) == {"CONFIRMED": 5, "IN_DOUBT": 1}
        assert rows(restored, "SELECT reason FROM payout WHERE state = 'IN_DOUBT'") == [(reason,)]
        [line] = [line for line in health(restored) if line.startswith("payouts")]
        assert line.startswith("payouts: 1 in doubt; ask the provider, then use `ticketflow payouts resolve`")
        assert rows(restored, "SELECT kind FROM alert WHERE kind LIKE 'Payout%'") == [("PayoutInDoubt",)]
    assert provider.paid == OWED


def test_numbers_that_are_given_anew_after_a_restore_name_nobody_else_s_money(
    server: EmbeddedServer, engine: Engine, provider: Provider, tmp_path: Path
) -> None:
    with backup(server, engine) as restored:
        owe(engine, OWED[:4], NAMES[:4])
        owe(restored, OWED[2:], NAMES[:1:-1])
        ask_and_pay(engine, provider, tmp_path / "a")
        ask_and_pay(restored, provider, tmp_path / "b", NOW + LATER)
        numbers = "SELECT organization_id FROM payout ORDER BY 1"
        assert rows(engine, numbers) == rows(restored, numbers)
        assert states(restored) == {"CONFIRMED": 4}
    assert provider.paid == OWED


def test_a_database_whose_installation_did_not_name_what_is_in_it_is_refused_by_everybody(
    server: EmbeddedServer, engine: Engine
) -> None:
    owe(engine)
    request(engine, review_first=True)
    with backup(server, engine) as restored:
        execute(restored, "ALTER TABLE installation DISABLE TRIGGER ALL")
        execute(restored, "UPDATE installation SET id = gen_random_uuid()")
        with restored.connect() as connection, pytest.raises(TicketflowError, match="was named under another: a dump"):
            require_agreement(connection, Settings())
        [line] = [line for line in health(restored) if line.startswith("settings: The row of installation")]
        assert line.endswith("restore the whole dump into a new database that nobody has migrated.")


def test_another_installation_asks_under_ids_of_its_own(
    server: EmbeddedServer, engine: Engine, provider: Provider, tmp_path: Path
) -> None:
    with backup(server, engine) as other:
        execute(other, "ALTER TABLE installation DISABLE TRIGGER ALL")
        execute(other, "UPDATE installation SET id = gen_random_uuid()")
        for number, each in enumerate((engine, other)):
            owe(each)
            ask_and_pay(each, provider, tmp_path / str(number))
    assert len(provider.paid) == 12


# --- Mails and webhooks

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
MAILED, TOLD = 4, 6


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
    kinds = {
        **KINDS,
        "ReminderDue": EventKind(
            lambda connection, messages: prepare_reminders(
                connection, messages, now=EVENING, options=MailOptions("tickets@example.com")
            )
        ),
    }
    drain(engine, to, kinds, budget=120, backoff=IMPATIENT)
    to.close()
    assert rows(engine, "SELECT state, count(*) FROM outbox_event GROUP BY 1") == [("DELIVERED", MAILED + TOLD)]


def message_ids(server: SmtpServer) -> list[str]:
    return [str(message_from_bytes(mail.content)["Message-ID"]) for mail in server.stored]


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
        assert list(application.applied.values()) == [2] * TOLD
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
        told = "SELECT event_id, payload ->> 'row' FROM outbox_event WHERE event_type = 'RowLeftOut'"
        [(before, gala)], [(after, opera)] = rows(engine, told), rows(restored, told)
        assert (gala, opera) == ("gala", "opera")
        assert before != after


# --- Dumps and standbys


def programs(server: EmbeddedServer) -> Path:
    """The folder of the server's own programs."""
    found = server.binaries or postgres_places.programs()
    if not (found / "pg_dump").exists():
        pytest.skip(f"no pg_dump in {found}")
    return found


@pytest.mark.every_server
def test_a_dump_that_is_restored_elsewhere_pays_nobody_again(
    server: EmbeddedServer, engine: Engine, provider: Provider, tmp_path: Path
) -> None:
    owe(engine)
    dump = tmp_path / "dump"
    url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    subprocess.run([programs(server) / "pg_dump", "-Fc", "-f", dump, url], check=True)
    ask_and_pay(engine, provider, tmp_path / "a")
    with fresh_database(server, "template0") as elsewhere:
        into = elsewhere.render_as_string(hide_password=False)
        subprocess.run([programs(server) / "pg_restore", "-d", into, "--exit-on-error", dump], check=True)
        restored = connect_engine(elsewhere, "restored", connections=10)
        ask_and_pay(restored, provider, tmp_path / "b", NOW + LATER)
        assert states(restored) == {"CONFIRMED": 6}
        restored.dispose()
    assert provider.paid == OWED


@contextmanager
def standby(server: EmbeddedServer, folder: Path) -> Iterator[EmbeddedServer]:
    """A running standby of `server` that has its own folder."""
    standby = EmbeddedServer(folder, server.binaries, server.parameters)
    folder.mkdir()
    command: list[str | Path] = [
        programs(server) / "pg_basebackup", "-D", standby.data, "-R", "-X", "stream", "-c", "fast", "--no-sync",
        "-U", "postgres", "-h", server.socket_directory, "-p", "5432",
    ]  # fmt: skip
    subprocess.run(command, check=True)
    account = postgres_places.account()
    if account is not None:
        for path in (standby.data, *standby.data.rglob("*")):
            os.chown(path, account.pw_uid, account.pw_gid, follow_symlinks=False)
    (standby.data / "postmaster.pid").unlink(missing_ok=True)
    try:
        standby.start()
        yield standby
    finally:
        standby.remove()


def until(engine: Engine, question: str) -> None:
    """Wait until the database says yes."""
    for _ in range(600):
        if rows(engine, question) == [(True,)]:
            return
        time.sleep(0.05)
    pytest.fail(f"it never came: {question}")


def test_a_standby_that_lost_the_last_seconds_pays_nobody_again(
    server: EmbeddedServer, engine: Engine, provider: Provider, tmp_path: Path, scratch: Path
) -> None:
    place = scratch / "standby"
    owe(engine, OWED[:4], NAMES[:4])
    with standby(server, place) as behind:
        following = connect_engine(behind.url(str(engine.url.database)), "standby", connections=10)
        [(written,)] = rows(engine, "SELECT CAST(pg_current_wal_lsn() AS text)")
        until(following, f"SELECT pg_last_wal_replay_lsn() >= CAST('{written}' AS pg_lsn)")
        with following.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("ALTER SYSTEM SET primary_conninfo = ''"))
            connection.execute(text("SELECT pg_reload_conf()"))
        until(following, "SELECT count(*) = 0 FROM pg_stat_wal_receiver")
        # The seconds that are lost: new organizations, and all that was paid.
        add_organization(engine, external_ref="lost")
        ask_and_pay(engine, provider, tmp_path / "a")
        assert rows(following, "SELECT count(*) FROM payout") == [(0,)]
        rows(following, "SELECT pg_promote()")
        until(following, "SELECT NOT pg_is_in_recovery()")
        following.dispose()
        for name in NAMES[4:]:
            add_organization(following, external_ref=name)
        ask_and_pay(following, provider, tmp_path / "b", NOW + LATER)
        assert states(following) == {"CONFIRMED": 4}
        following.dispose()
    assert provider.paid == OWED[:4]
    assert not place.exists() or not list(place.glob("postgres/*"))
    shutil.rmtree(place, ignore_errors=True)


# --- How ids are made


def derived(engine: Engine, name: str) -> uuid.UUID:
    """The id that `name` makes, by RFC 9562's appendix B.2."""
    with engine.connect() as connection:
        installation = read_installation(connection).id
    digest = hashlib.sha256(installation.bytes + name.encode()).digest()
    number = int.from_bytes(digest[:16]) & ~(0xF << 76) & ~(0x3 << 62)
    return uuid.UUID(int=number | 0x8 << 76 | 0x2 << 62)


@pytest.mark.every_server
def test_ids_are_uuids_of_version_8_made_of_the_installation_and_the_key(engine: Engine) -> None:
    owe(engine, [("Ñandú:EUR", "EUR", 1_000)], ["Ñandú:EUR"])
    request(engine)
    [(payout,)] = rows(engine, "SELECT public_id FROM payout")
    assert payout == derived(engine, "payout:Ñandú:EUR:EUR:2026-03")
    assert (payout.version, payout.variant) == (8, uuid.RFC_4122)
    [(event,)] = rows(engine, "SELECT event_id FROM outbox_event WHERE event_type = 'PayoutRequested'")
    assert event == derived(engine, f"outbox_event:PayoutRequested:{payout}")


PUT = "INSERT INTO outbox_event ({}aggregate_type, aggregate_id, event_type, payload, dedupe_key, occurred_at)"


@pytest.mark.every_server
def test_an_event_that_is_given_no_id_gets_its_own_and_no_other_is_taken(engine: Engine) -> None:
    execute(engine, f"{PUT.format('')} VALUES ('thing', '1', 'Told', '{{}}', 'Told:1', now())")
    assert rows(engine, "SELECT event_id FROM outbox_event") == [(derived(engine, "outbox_event:Told:1"),)]
    other = f"{PUT.format('event_id, ')} VALUES (gen_random_uuid(), 'thing', '2', 'Told', '{{}}', 'Told:2', now())"
    assert "the id of event Told:2 is not the one that its key makes" in refusal(engine, other)


def test_a_payout_that_is_given_no_reference_gets_its_own_and_no_other_is_taken(engine: Engine) -> None:
    owe(engine)
    put = "INSERT INTO payout ({}organization_id, currency, month, amount, state) SELECT {}organization_id, currency, "
    put += "month, payable, 'HELD' FROM organization_balance ORDER BY organization_id"
    assert "the reference of a payout to org-00" in refusal(engine, put.format("public_id, ", "gen_random_uuid(), "))
    execute(engine, put.format("", ""))
    written = "SELECT public_id FROM payout ORDER BY organization_id"
    assert rows(engine, written) == [(derived(engine, f"payout:{name}:EUR:2026-03"),) for name in NAMES]


def test_a_doubt_that_comes_up_again_after_a_restore_is_told_again(server: EmbeddedServer, engine: Engine) -> None:
    owe(engine, OWED[:1])
    request(engine)
    with backup(server, engine) as restored:
        ids = set()
        for each in (engine, restored):
            recorded(each, "DEAD")
            ids |= set(rows(each, "SELECT event_id FROM outbox_event WHERE event_type = 'PayoutInDoubt'"))
        assert len(ids) == 2


# --- Two payouts, one reference of the provider


def confirmed_alike(engine: Engine, provider_ref: str = "po_1") -> list[str]:
    """Two payouts that the provider confirmed under one reference."""
    owe(engine, OWED[:2], NAMES[:2])
    request(engine)
    recorded(engine, "DELIVERED", said({"status": "confirmed", "provider_ref": provider_ref}))
    return [str(reference) for (reference,) in rows(engine, "SELECT public_id FROM payout ORDER BY id")]


def shared_lines(engine: Engine) -> list[str]:
    return [line for line in health(engine) if "one reference" in line]


def test_two_payouts_confirmed_under_one_reference_are_alerted_and_listed(engine: Engine) -> None:
    first, second = confirmed_alike(engine)
    told = "SELECT payload FROM outbox_event WHERE event_type = 'PayoutReferenceShared'"
    payload = {"provider_ref": "po_1", "payouts": [first, second], "severity": "page", "subject": "po_1"}
    assert rows(engine, told) == [(payload,)]
    [line] = shared_lines(engine)
    assert line.startswith("payouts: 2 are confirmed under one reference of the provider, po_1, since ")
    assert f"ask the provider which of {first}, {second} it paid" in line
    with engine.connect() as connection:
        assert [one.shares for one in payouts(connection)] == [True, True]


@pytest.mark.parametrize("way", ["returned", "its own"])
def test_what_stands_in_the_way_of_a_shared_reference_ends_when_a_person_has_found_out(
    engine: Engine, way: str
) -> None:
    first, second = confirmed_alike(engine)
    with transaction(engine) as connection:
        if way == "returned":
            actions.return_payout(connection, second, "never paid", "ana")
        else:
            actions.confirm(connection, second, "ana", "po_2", now=NOW)
    assert shared_lines(engine) == []
    kept = f"SELECT state, provider_ref FROM payout WHERE public_id = '{first}'"
    assert rows(engine, kept) == [("CONFIRMED", "po_1")]
    with engine.connect() as connection:
        assert [one.shares for one in payouts(connection)] == [False, False]


def test_a_payout_keeps_a_reference_that_nobody_shares(engine: Engine) -> None:
    [first, second] = confirmed_alike(engine)
    with transaction(engine) as connection:
        actions.confirm(connection, second, "ana", "po_2", now=NOW)
    with pytest.raises(Exception, match="is CONFIRMED"), transaction(engine) as connection:
        actions.confirm(connection, first, "ana", "po_3", now=NOW)


def test_one_payout_under_two_references_is_told(engine: Engine) -> None:
    owe(engine, OWED[:1], NAMES[:1])
    request(engine)
    for provider_ref in ("po_1", "po_2", "po_2"):
        recorded(engine, "DELIVERED", said({"status": "confirmed", "provider_ref": provider_ref}))
    assert rows(engine, "SELECT kind, right(key, 4) FROM alert") == [("PayoutContradicted", "po_2")]
    assert rows(engine, "SELECT provider_ref FROM payout") == [("po_1",)]
