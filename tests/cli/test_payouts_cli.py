"""`ticketflow payouts`: what people see and decide at the terminal, and what they are refused in one sentence."""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine
from sqlalchemy.engine import URL
from typer.testing import CliRunner, Result

from tests.support import commands
from tests.support.homes import fresh_home, variables_for
from tests.support.payable import MARCH, close_with, owing, pay_from, request, requested_payout, rows
from tests.support.provider_by_hand import CONFIRMED, in_doubt, recorded, said
from tests.support.rows import add_organization
from tests.support.sql_statements import deliver
from ticketflow_orch import cli
from ticketflow_orch.local.postgres import EmbeddedServer

ME = f"{getpass.getuser()}@{socket.gethostname()}"


@pytest.fixture(autouse=True)
def home(server: EmbeddedServer, scratch: Path, url: URL) -> Iterator[None]:
    """A home on a running server with a migrated database."""
    with fresh_home(scratch, **variables_for(url, server.url("unused"))):
        yield


def run(*arguments: str) -> str:
    """What `ticketflow payouts` prints."""
    return commands.output("payouts", *arguments)


def refusal(*arguments: str) -> str:
    """What `ticketflow payouts` says against its input."""
    return commands.refusal("payouts", *arguments)


def state(engine: Engine) -> tuple[str, str | None]:
    """The state of the one payout, and who decided."""
    [(found, by)] = rows(engine, "SELECT state, decided_by FROM payout")
    return found, by


@pytest.mark.parametrize("option", ["--month=", "--month=2026-03 --currency=", "--month=2026-03 --currency=EURO"])
def test_an_option_that_says_nothing_releases_nothing(engine: Engine, option: str) -> None:
    owing(engine)
    request(engine, review_first=True)
    for command in ("release", "resolve --as again"):
        assert re.match("'.*' is no(t a month| currency)", refusal(*command.split(), *option.split()))
    assert state(engine) == ("HELD", None)


def test_a_month_that_says_nothing_does_not_turn_payouts_off(engine: Engine) -> None:
    pay_from(engine, MARCH)
    assert refusal("from", "").startswith("'' is not a month")
    assert rows(engine, "SELECT payouts_from FROM installation") == [(MARCH.first_day,)]


def test_payouts_are_listed_by_what_is_asked_for(engine: Engine) -> None:
    choir, band = add_organization(engine, external_ref="choir"), add_organization(engine, external_ref="band")
    close_with(engine, [(choir, "EUR", 123_456), (band, "JPY", 700)])
    assert run("list") == "There is no such payout.\n"
    request(engine)
    everything = run("list")
    assert "1,234.56 EUR" in everything
    assert "700 JPY" in everything
    for narrowed in (
        run("list", "--currency", "jpy"),
        run("list", "--organization", "band"),
        run("list", "--currency", "JPY", "--month", "2026-03", "--state", "requested"),
    ):
        assert "band" in narrowed
        assert "choir" not in narrowed
    assert run("list", "--month", "2026-02") == run("list", "--state", "held") == "There is no such payout.\n"
    assert refusal("list", "--state", "lost") == (
        "'lost' is no state of a payout; choose one of held, requested, confirmed, rejected, returned, in_doubt."
    )


def test_one_payout_is_shown_with_all_that_became_of_it(engine: Engine) -> None:
    reference = requested_payout(engine)
    deliver(engine, "now()")
    recorded(engine, "DELIVERED", said(CONFIRMED))
    shown = run("show", reference)
    for line in (reference, "2026-03", "880.00 EUR", "CONFIRMED", "po_1", "DELIVERED, 1 attempts"):
        assert line in shown
    assert "no reference of a payout" in refusal("show", "typo")


def test_pausing_is_seen_by_whoever_looks(engine: Engine) -> None:
    run("pause", "--reason", "the bank is closed")
    assert f"Payouts are paused: by {ME}: the bank is closed." in run("list")
    run("resume")
    assert "paused" not in run("list")


def test_a_payout_is_held_and_released_by_name(engine: Engine) -> None:
    reference = requested_payout(engine)
    run("hold", reference, "--reason", "asked by the bank")
    assert state(engine) == ("HELD", ME)
    assert run("release", reference) == "1 released.\n"
    assert state(engine) == ("REQUESTED", ME)


@pytest.mark.parametrize(
    "arguments", [[], ["r", "--month", "2026-03"], ["r", "--currency", "EUR"], ["--currency", "EUR"]]
)
def test_what_is_decided_about_at_once_is_one_payout_or_a_month(arguments: list[str]) -> None:
    for command in (["release"], ["resolve", "--as", "again"]):
        assert refusal(*command, *arguments).startswith("Name one payout by its reference, or a month")


def test_a_months_payouts_in_doubt_are_asked_for_again(engine: Engine) -> None:
    in_doubt(engine)
    assert run("resolve", "--as", "again", "--month", str(MARCH), "--currency", "eur") == "1 asked for again.\n"
    assert state(engine) == ("REQUESTED", ME)


@pytest.mark.parametrize("arguments", [["confirm"], ["resolve", "--as", "confirmed"]])
def test_a_payout_in_doubt_is_confirmed(engine: Engine, arguments: list[str]) -> None:
    reference = in_doubt(engine)
    assert run(*arguments, reference, "--provider-ref", "po_9") == f"{reference} is confirmed.\n"
    assert rows(engine, "SELECT state, provider_ref FROM payout") == [("CONFIRMED", "po_9")]


def test_a_payout_in_doubt_is_rejected_with_a_reason(engine: Engine) -> None:
    reference = in_doubt(engine)
    assert "Say with --reason why" in refusal("resolve", reference, "--as", "rejected")
    assert "Name the payout by its reference" in refusal("resolve", "--as", "rejected", "--month", "2026-03")
    assert state(engine) == ("IN_DOUBT", None)
    run("resolve", reference, "--as", "rejected", "--reason", "no trace of it")
    assert state(engine) == ("REJECTED", ME)


def test_a_confirmed_payout_comes_back(engine: Engine) -> None:
    reference = requested_payout(engine)
    deliver(engine, "now()")
    recorded(engine, "DELIVERED", said(CONFIRMED))
    run("return", reference, "--reason", "IBAN closed")
    assert state(engine) == ("RETURNED", ME)


def test_the_first_month_that_is_paid_is_shown_and_set_for_all_or_for_one(engine: Engine) -> None:
    add_organization(engine, external_ref="choir")
    assert run("from") == "Payouts begin with 2014-10; what is about months before was settled elsewhere.\n"
    assert run("from", "2026-03").startswith("Payouts begin with 2026-03")
    shown = run("from", "2026-05", "--organization", "choir")
    assert shown.startswith("Payouts begin with 2026-03")
    assert "choir" in shown
    assert ME in shown
    assert "choir" not in run("from", "--organization", "choir", "--off")
    assert run("from", "--off") == "Payouts are off: what is due is carried.\n"
    changes = rows(engine, "SELECT before, after, changed_by FROM installation_change WHERE name = 'payouts_from'")
    assert changes[-2:] == [("2014-10-01", "2026-03-01", ME), ("2026-03-01", None, ME)]


def test_what_closed_months_would_be_paid_is_said_and_must_be_agreed_to(engine: Engine) -> None:
    pay_from(engine, None)
    choir = add_organization(engine, external_ref="choir")
    close_with(engine, [(choir, "EUR", 123_456)])
    assert run("from").endswith("Waiting because payouts are off: 1,234.56 EUR of 1 organization.\n")
    assert refusal("from", "2026-03") == (
        "From 2026-03 on, closed months pay 1,234.56 EUR of 1 organization, with the payouts that are due and the next "
        "month that is closed; confirm it by --yes."
    )
    assert rows(engine, "SELECT payouts_from FROM installation") == [(None,)]
    assert run("from", "2026-03", "--yes").startswith("Payouts begin with 2026-03")


def test_on_a_terminal_the_month_is_typed_to_agree(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    pay_from(engine, None)
    close_with(engine, [(add_organization(engine), "EUR", 123_456)])
    monkeypatch.setattr("ticketflow_orch.cli.payouts._is_terminal", lambda: True)

    def answered(word: str) -> Result:
        return CliRunner().invoke(cli.app, ["payouts", "from", "2026-03"], input=f"{word}\n")

    said = answered("yes")
    assert "This pays 1,234.56 EUR of 1 organization of closed months." in said.output
    assert str(said.exception) == "'yes' is not 2026-03; nothing is changed."
    assert rows(engine, "SELECT payouts_from FROM installation") == [(None,)]
    assert "Payouts begin with 2026-03" in answered("2026-03").output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("2026-03", "--off"), "Name a month or --off, not both."),
        (("--organization", "choir"), "Name the first month that choir is paid for, such as 2026-03, or --off."),
    ],
)
def test_a_first_month_that_is_asked_for_in_two_ways_or_none_is_refused(
    arguments: tuple[str, ...], sentence: str
) -> None:
    assert refusal("from", *arguments) == sentence
