"""The commands around the books, on one home: close, books, late, park, unpark, a dry run; and what they refuse."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from typer.testing import CliRunner, Result

from tests.support.homes import fresh_home
from ticketflow_orch import cli
from ticketflow_orch.cli.session import database
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.demo_data import load_demo
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.local import databases
from ticketflow_orch.months import Month
from ticketflow_orch.settings import settings


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, arguments, catch_exceptions=False)


@pytest.fixture(scope="module")
def closed(scratch: Path) -> Iterator[Result]:
    """A home in April 2026 with January to March settled and the first two closed; what closing them printed."""
    with fresh_home(scratch, TICKETFLOW_FIXED_CLOCK="2026-04-15T10:00:00Z"):
        databases.ensure_running(settings())
        with database("test") as engine:
            load_demo(engine, Month(2026, 3), months=3, organizations=40)
        assert invoke("settle", "--from", "2026-01", "--to", "2026-03").exit_code == 0
        yield invoke("close", "--from", "2026-01", "--to", "2026-02", "--by", "ana")


def write(statement: str) -> None:
    engine = connect_engine(databases.ensure_running(settings()).ticketflow, "pytest")
    with engine.begin() as connection:
        connection.execute(text(statement))
    engine.dispose()


def test_months_are_closed_in_order_and_shown(closed: Result) -> None:
    assert closed.exit_code == 0, closed.stdout
    assert [line[:20] for line in closed.stdout.splitlines()] == ["2026-01 is closed. 4", "2026-02 is closed. 4"]
    again = invoke("close", "2026-02")
    assert "2026-02 was closed already, by user ana; nothing was changed." in again.stdout
    books = invoke("books", "--to", "2026-01")
    assert books.exit_code == 0
    assert {line.split()[0] for line in books.stdout.splitlines()[1:]} == {"2026-01"}
    assert "CLOSED" in invoke("status").stdout


def test_a_month_that_may_not_be_closed_is_named_with_why(closed: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TicketflowError, match=r"2026-05 is not over in .* and it is 2026-04-15"):
        invoke("close", "2026-05")
    monkeypatch.setenv("TICKETFLOW_FIXED_CLOCK", "2026-06-15T10:00:00Z")
    settings.cache_clear()
    try:
        refused = invoke("close", "2026-05")
    finally:
        monkeypatch.undo()
        settings.cache_clear()
    assert refused.exit_code == 1
    assert "2026-03 is SETTLED, and months are closed in order; close it before 2026-05" in refused.stdout


def test_what_comes_late_is_rehearsed_posted_and_listed(closed: Result, tmp_path: Path) -> None:
    assert invoke("late").stdout == "Nothing came late.\n"
    write("""
        INSERT INTO money_movement (external_ref, organization_id, kind, currency, amount, commission_rate_bps,
            commission_tax_bps, occurred_at, reason)
        SELECT 'forgotten', id, 'MANUAL', 'EUR', -1234, 0, 0, '2026-02-10 10:00Z', 'forgotten'
        FROM organization WHERE external_ref = 'demo-00001'
    """)
    rehearsed = invoke("settle", "2026-03", "--dry-run", "--file", str(tmp_path / "march.csv"))
    assert rehearsed.exit_code == 0
    assert rehearsed.stdout.startswith("2026-03 dry run: nothing was posted.\n")
    assert "demo-00001" in rehearsed.stdout
    row = (tmp_path / "march.csv").read_text("utf-8").splitlines()[1]
    assert row.startswith('"demo-00001","2026-03","2026-02","adjustment"')
    assert "1 adjusted" in invoke("settle", "2026-03").stdout
    listed = invoke("late", "--month", "2026-03").stdout.splitlines()
    assert listed[1].split()[:4] == ["demo-00001", "2026-03", "2026-02", "EUR"]
    assert listed[1].split()[-1] == "-12.34"
    assert "A settlement would post nothing." in invoke("settle", "2026-03", "--dry-run").stdout
    assert "the month is closed" in invoke("settle", "2026-01", "--dry-run").stdout
    assert invoke("late", "--month", "2026-02").stdout == "Nothing that came late was posted in 2026-02.\n"


def test_an_organization_is_parked_listed_and_released(closed: Result) -> None:
    assert invoke("park").stdout == "Nobody is parked by hand.\n"
    parked = invoke("park", "demo-00002", "--reason", "disputed contract", "--by", "ana")
    assert parked.stdout.startswith("demo-00002 is parked from 2026-")
    listed = invoke("park").stdout
    assert "disputed contract" in listed
    assert "ana (role " in listed
    assert invoke("unpark", "demo-00002").stdout.startswith("demo-00002 is not parked any more; it was since 20")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("close",), "Name one month, or --from and --to; for example `ticketflow close 2026-03`."),
        (("close", "--from", "2026-03", "--to", "2026-01"), "There is no month from 2026-03 to 2026-01"),
        (("park", "nobody", "--reason", "x"), "There is no organization 'nobody'"),
        (("park", "demo-00003"), "Say why 'demo-00003' is parked"),
        (("unpark", "demo-00003"), "Organization 'demo-00003' is not parked by hand"),
        (("settle", "2026-03", "--file", "x.csv"), "The file x.csv is for the dry run of one month"),
        (("settle", "2026-09", "--dry-run"), "2026-09 is not over in"),
        (("late", "--month", "March"), "'March' is not a month"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(
    closed: Result,
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
