"""Statements by mail: queued once for each that has a contact and is no history, sent with the page itself."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine, text

from tests.mail.reading import event, read, reason, text_of
from tests.support.rows import add_movement, add_organization, instant
from tests.support.sql_statements import execute, queries
from tests.support.statements import FEBRUARY, MARCH, close, state
from ticketflow_orch.event_handlers import KINDS
from ticketflow_orch.mail.message import MailOptions
from ticketflow_orch.mail.statements import prepare_statements
from ticketflow_orch.mail.suppression import Reason, suppress
from ticketflow_orch.outbox.delivery import Message
from ticketflow_orch.outbox.delivery.handlers import Prepared, Rendered, Suppressed

BEFORE = instant("2020-01-01T00:00")


def add_theatre(engine: Engine, reference: str = "teatro", **values: Any) -> int:
    organization = add_organization(
        engine, external_ref=reference, **{"name": "Teatro Real", "contact_email": "finance@teatro.example"} | values
    )
    add_movement(engine, organization, 100_000, "2026-03-10T10:00")
    return organization


def queued(engine: Engine) -> list[Message]:
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT event_id, event_type, payload FROM outbox_event ORDER BY id")).all()
    return [event(row.event_type, row.payload, row.event_id) for row in rows if row.event_type == "StatementReady"]


def ready(**values: Any) -> Message:
    payload = {"organization": "teatro", "currency": "EUR", "month": "2026-03"}
    return event("StatementReady", payload | values, uuid4())


def prepare(engine: Engine, *messages: Message) -> list[Prepared]:
    with engine.connect() as connection:
        prepared = prepare_statements(connection, messages, options=MailOptions("tickets@example.com"))
    return [prepared[message.event_id] for message in messages]


@pytest.mark.every_server
def test_every_statement_is_mailed_once_however_often_the_month_is_stated(engine: Engine, tmp_path: Path) -> None:
    organization = add_theatre(engine)
    add_movement(engine, organization, 100_000, "2026-03-10T10:00", currency="JPY")
    add_theatre(engine, "nobody", contact_email=None)
    add_theatre(engine, "empty", contact_email="")
    close(engine, MARCH)
    assert state(engine, tmp_path, mail_from=BEFORE).mails == 2
    for _ in range(3):
        assert state(engine, tmp_path, mail_from=BEFORE).mails == 0
    assert [message.payload for message in queued(engine)] == [
        {"organization": "teatro", "currency": currency, "month": "2026-03"} for currency in ("EUR", "JPY")
    ]
    # Not even when the outbox has forgotten it.
    execute(engine, "DELETE FROM outbox_event")
    assert state(engine, tmp_path, mail_from=BEFORE).mails == 0


def test_history_and_a_platform_that_mails_nobody_yet_mail_nobody(engine: Engine, tmp_path: Path) -> None:
    add_theatre(engine, timezone="Asia/Tokyo")
    close(engine, FEBRUARY)
    close(engine, MARCH)
    unset = state(engine, tmp_path)
    assert (unset.mails, unset.mails_off) == (0, True)
    # March is over in Tokyo at 15:00 UTC.
    assert state(engine, tmp_path, mail_from=instant("2026-03-31T15:00:01")).mails == 0
    assert state(engine, tmp_path, FEBRUARY, mail_from=instant("2026-03-31T15:00")).mails == 0
    result = state(engine, tmp_path, mail_from=instant("2026-03-31T15:00"))
    assert (result.mails, result.mails_off) == (1, False)


def test_the_mail_sums_up_and_brings_the_page_as_it_was_written(engine: Engine, tmp_path: Path) -> None:
    add_theatre(engine, locale="es")
    close(engine, MARCH)
    result = state(engine, tmp_path, mail_from=BEFORE)
    [message] = queued(engine)
    assert KINDS[message.event_type].preparer is not None
    mail = read(prepare(engine, message)[0])
    assert mail["To"] == "finance@teatro.example"
    assert mail["Subject"] == "Liquidación de marzo de 2026 (EUR) · Teatro Real"
    assert "A pagar            880,00\nSaldo final          0,00\n" in text_of(mail)
    assert "EUR 880,00" in text_of(mail, "html")
    [attachment] = mail.iter_attachments()
    assert attachment.get_filename() == "statement-2026-03-EUR.html"
    page = Path(result.folder) / "organizations" / "teatro" / "EUR.html"
    assert attachment.get_payload(decode=True) == page.read_bytes()


def test_the_same_event_is_rendered_to_the_same_bytes(engine: Engine, tmp_path: Path) -> None:
    add_theatre(engine)
    close(engine, MARCH)
    message = ready()
    first, second = prepare(engine, message), prepare(engine, message)
    assert isinstance(first[0], Rendered)
    assert first == second


def test_who_cannot_be_mailed_is_suppressed_with_the_reason(engine: Engine) -> None:
    add_theatre(engine)
    add_theatre(engine, "nobody", contact_email=None)
    add_theatre(engine, "odd", contact_email="a@x.example, b@x.example")
    close(engine, MARCH)
    prepared = prepare(
        engine,
        ready(organization="nobody"),
        ready(organization="odd"),
        ready(organization="unknown"),
        ready(month="2026-02"),
        ready(currency="KWD"),
        ready(),
    )
    assert [reason(one) for one in prepared[:5]] == [
        "The organization has no contact address.",
        "The contact address is not one that mail can be sent to.",
        "The organization has no contact address.",
        "There is no such statement.",
        "There is no such statement.",
    ]
    read(prepared[5])


def test_what_has_been_sent_before_is_sent_again_as_it_was(engine: Engine) -> None:
    add_theatre(engine)
    close(engine, MARCH)
    message = event("StatementReady", ready().payload, rendered=b"as it was")
    assert prepare(engine, message) == [Rendered(b"as it was")]


def test_a_batch_costs_a_few_queries_a_month_however_many_it_holds(engine: Engine) -> None:
    references = [f"theatre-{number}" for number in range(20)]
    for reference in references:
        add_theatre(engine, reference)
    close(engine, FEBRUARY)
    close(engine, MARCH)
    messages = [ready(organization=ref, month=month) for ref in references for month in ("2026-02", "2026-03")]
    with queries(engine) as sent:
        assert all(isinstance(one, Rendered) for one in prepare(engine, *messages))
    # Contacts and suppressed addresses, then balances, origins, lines, returned payouts and movements of each month.
    assert len(sent) == 2 + 2 * 5


def test_a_statement_goes_to_the_domain_that_is_written_not_to_one_that_looks_like_it(engine: Engine) -> None:
    add_theatre(engine, contact_email="kasse@spaß.example")
    close(engine, MARCH)
    [mail] = prepare(engine, ready())
    assert read(mail)["To"] == "kasse@xn--spa-7ka.example"


def test_a_statement_that_could_not_be_mailed_is_looked_at_again_when_it_can(engine: Engine) -> None:
    add_theatre(engine, contact_email="kasse")
    close(engine, MARCH)
    [kept] = prepare(engine, ready())
    assert isinstance(kept, Suppressed)
    assert kept.until == instant("2026-06-01T18:00") + timedelta(days=60)
    with engine.begin() as connection:
        suppress(connection, "kasse@teatro.example", Reason.COMPLAINT, "abuse", by="somebody")
    execute(engine, "UPDATE organization SET contact_email = 'kasse@teatro.example'")
    # Who complained of reminders is a party to a contract all the same.
    assert read(prepare(engine, ready())[0])["To"] == "kasse@teatro.example"
    with engine.begin() as connection:
        suppress(connection, "kasse@teatro.example", Reason.BOUNCE, "550", by="somebody")
    assert reason(prepare(engine, ready())[0]).startswith("The address is suppressed: it bounced")
