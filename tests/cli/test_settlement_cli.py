"""The commands around the settlement, on one home: the demo twice, months, status, an explanation, refusals."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from typer.testing import CliRunner, Result

from tests.support.homes import fresh_home
from ticketflow_orch import cli
from ticketflow_orch.cli.session import database
from ticketflow_orch.db.installation import read_installation
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.local import databases
from ticketflow_orch.outbox.delivery.configuration import read_delivery
from ticketflow_orch.settings import settings

DEMO = ("demo", "--organizations", "40", "--months", "3", "--finished")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, arguments, catch_exceptions=False)


@pytest.fixture(scope="module")
def demo(scratch: Path) -> Iterator[Result]:
    """A home whose clock stands still in April 2026, with the demo run once; what that printed."""
    with fresh_home(scratch, TICKETFLOW_FIXED_CLOCK="2026-04-15T10:00:00Z"):
        databases.ensure_running(settings())
        yield invoke(*DEMO)


def test_the_demo_settles_closes_pays_and_states_and_says_where_to_look(demo: Result) -> None:
    assert demo.exit_code == 0
    for part in (
        "2026-01 settled:",
        "2026-03 settled:",
        "Net, by month and currency",
        "Top organizations",
        "2026-01 to 2026-03 closed, with ",
        "2026-01 to 2026-03 requested: ",
        "2026-03 issued: ",
        "nothing has left this machine",
        "Statement of ",
        "make ui",
    ):
        assert part in demo.stdout


def test_the_demo_has_every_payout_confirmed_and_writes_it_to_the_file_that_it_names(demo: Result) -> None:
    with database("test") as engine, engine.connect() as connection:
        asked = connection.execute(text("SELECT count(*) FROM payout WHERE state = 'CONFIRMED'")).scalar_one()
        assert connection.execute(text("SELECT count(*) FROM payout WHERE state <> 'CONFIRMED'")).scalar_one() == 0
    events = [json.loads(line) for line in (settings().home / "outbox.jsonl").read_text("utf-8").splitlines()]
    assert asked > 0
    assert sum(event["event_type"] == "PayoutRequested" for event in events) == asked
    assert f"{len(events):,} events for the outside world are in" in demo.stdout


def test_the_statement_that_the_demo_prints_is_where_it_says(demo: Result) -> None:
    (address,) = (line for line in demo.stdout.splitlines() if line.endswith(".html"))
    assert "Closing balance" in Path(address).read_text("utf-8")


def test_the_demo_repeated_changes_nothing_and_says_so(demo: Result) -> None:
    delivered = (settings().home / "outbox.jsonl").read_bytes()
    again = invoke(*DEMO)
    assert again.exit_code == demo.exit_code == 0
    assert "this run changed nothing" in again.stdout
    assert "settled:" not in again.stdout
    assert (settings().home / "outbox.jsonl").read_bytes() == delivered


def test_the_demo_pays_nobody_where_destinations_are_real(
    demo: Result, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TICKETFLOW_DELIVERY", "delivery.toml")
    settings.cache_clear()
    try:
        with pytest.raises(
            TicketflowError, match=r"TICKETFLOW_DELIVERY=delivery\.toml names real destinations; unset it"
        ):
            invoke(*DEMO)
    finally:
        monkeypatch.undo()
        settings.cache_clear()


def test_the_demo_pays_nobody_where_the_home_s_own_destinations_are_real(
    demo: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = settings().home / "delivery.toml"
    before = own.read_text("utf-8")
    own.write_text(before.replace('"demo"', '"file"'), "utf-8")
    try:
        with pytest.raises(TicketflowError, match=r"delivery\.toml names real destinations; move it away for the demo"):
            invoke(*DEMO)
    finally:
        own.write_text(before, "utf-8")


def test_what_the_demo_decided_holds_for_whatever_process_works_in_its_home(demo: Result) -> None:
    with database("test") as engine, engine.connect() as connection:
        installation = read_installation(connection)
    assert str(installation.payouts_from) == "2025-01"
    assert read_delivery(settings()).route("PayoutRequested").destination == "provider"


def test_a_range_of_months_is_settled_one_by_one(demo: Result) -> None:
    settled = invoke("settle", "--from", "2026-02", "--to", "2026-03")
    assert settled.exit_code == 0
    assert [line.split()[0] for line in settled.stdout.splitlines()] == ["2026-02", "2026-03"]
    assert settled.stdout.count("nothing was posted") == 2


def test_status_shows_each_month(demo: Result) -> None:
    status = invoke("status")
    assert status.exit_code == 0
    assert [line.split()[:2] for line in status.stdout.splitlines()[1:4]] == [
        ["2026-01", "CLOSED"],
        ["2026-02", "CLOSED"],
        ["2026-03", "CLOSED"],
    ]


def test_an_explanation_goes_from_movements_to_the_ledger(demo: Result) -> None:
    explained = invoke("explain", "demo-00001", "2026-02")
    assert explained.exit_code == 0
    for part in ("Lines by rate", "Movements", "Ledger entries about this month", "settlement"):
        assert part in explained.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("settle", "2026-13"), "'2026-13' is not a month; write it as YYYY-MM, for example 2026-03."),
        (("settle", "--from", "2026-03", "--to", "2026-01"), "There is no month from 2026-03 to 2026-01"),
        (("settle",), "Name one month, or --from and --to"),
        (("explain", "nobody", "2026-01"), "There is no organization 'nobody'"),
        (("demo", "--months", "99"), "2025-01 to 2026-03 are 15 months, not 99"),
        (("demo", "--months", "3"), "A demo that leaves work has at least 6 months, not 3; --finished does with fewer"),
        (("demo", "--organizations", "40"), "A demo that leaves work has at least 110 organizations, not 40"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(
    demo: Result,
    arguments: tuple[str, ...],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["ticketflow", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith(f"error: {sentence}")
