"""`ticketflow mail`: who gets no mail any more, what came back, what is kept back, as operators see and change it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine
from sqlalchemy.engine import URL
from typer.testing import CliRunner

from tests.mail.relayed import Mailbox, relay, window
from tests.support.commands import output
from tests.support.homes import fresh_home, variables_for
from tests.support.rows import add_event, add_organization, add_reservation, instant
from tests.support.sql_statements import execute
from ticketflow_orch import cli
from ticketflow_orch.clock import now
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.ticketing.reminders import ReminderRules, send_reminders


@pytest.fixture(autouse=True)
def home(server: EmbeddedServer, scratch: Path, url: URL) -> Iterator[Path]:
    with fresh_home(scratch, **variables_for(url, server.url(f"{url.database}_dagster"))) as home:
        yield home


def run(*arguments: str, given: str | None = None) -> str:
    """What a command prints."""
    return output("mail", *arguments, given=given)


def test_an_address_is_suppressed_listed_and_cleared(engine: Engine) -> None:
    assert "No address is suppressed." in run("suppressed")
    run("suppress", "Kasse@spaß.example", "--reason", "asked by telephone")
    assert "is suppressed by hand already" in run("suppress", "kasse@spaß.example", "--reason", "again")
    listed = run("suppressed", "--address", "kasse@xn--spa-7ka.example")
    assert "by hand" in listed
    assert "asked by telephone" in listed
    run("clear", "kasse@spaß.example")
    assert "No address is suppressed." in run("suppressed")
    assert "asked by telephone" in run("suppressed", "--all")
    refused = CliRunner().invoke(cli.app, ["mail", "clear", "kasse@spaß.example"])
    assert "is not suppressed" in str(refused.exception)


def test_what_came_back_is_taken_in_from_a_mailbox_and_from_a_provider(engine: Engine, scratch: Path) -> None:
    box = scratch / "bounces"
    box.write_text("From: a@example.net\nSubject: hello\n\nhello\n")
    assert run("bounces", str(box)).startswith("0 reports taken in, 0 known before, 1 about no mail of ours")
    report = json.dumps({"reason": "bounce", "address": "gone@example.com", "detail": "550 5.1.1"})
    assert run("told", "-", given=f"{report}\n{report}\n").startswith("1 report taken in, 1 known before, 0 about")
    assert "550 5.1.1" in run("suppressed")
    refused = CliRunner().invoke(cli.app, ["mail", "bounces", str(scratch / "nothing")])
    assert "nothing cannot be read (No such file or directory)" in str(refused.exception)


def test_what_is_kept_back_is_listed_with_its_reason_and_sent_when_it_is_corrected(engine: Engine) -> None:
    start = now() + timedelta(hours=20)
    evening = add_event(engine, add_organization(engine), starts_at=start, ends_at=start + timedelta(hours=2))
    add_reservation(
        engine, evening, status="CONFIRMED", confirmed_at=instant("2026-05-01T10:00"), buyer_email="bob@example,com"
    )
    send_reminders(engine, ReminderRules(now() - timedelta(days=9), {"24h": timedelta(hours=24)}))
    window(engine, now())
    assert "No mail is kept back." in run("kept-back")
    relay(engine, now(), Mailbox())
    assert "is not an address that mail can be sent to" in run("kept-back")
    assert run("retry") == "0 mails to be sent after all.\n"
    execute(engine, "UPDATE reservation SET buyer_email = 'bob@example.com'")
    assert run("retry") == "1 mail to be sent after all.\n"
    assert relay(engine, now(), Mailbox()).delivered == 1
