"""The commands around the settlement, on one home: the demo twice, months, status, an explanation, refusals."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.homes import fresh_home
from ticketflow_orch import cli, databases
from ticketflow_orch.settings import settings

DEMO = ("demo", "--organizations", "40", "--months", "3")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, arguments, catch_exceptions=False)


@pytest.fixture(scope="module")
def demo(scratch: Path) -> Iterator[Result]:
    """A home whose clock stands still in April 2026, with the demo run once; what that printed."""
    with fresh_home(scratch, TICKETFLOW_FIXED_CLOCK="2026-04-15T10:00:00Z"):
        databases.ensure_running(settings())
        yield invoke(*DEMO)


def test_the_demo_settles_every_month_and_prints_the_statement(demo: Result) -> None:
    assert demo.exit_code == 0
    for part in (
        "2026-01 settled:",
        "2026-03 settled:",
        "Settled, by month and currency",
        "Top organizations",
        "make ui",
    ):
        assert part in demo.stdout


def test_the_demo_repeated_changes_nothing_and_says_so(demo: Result) -> None:
    again = invoke(*DEMO)
    assert again.exit_code == demo.exit_code == 0
    assert "3 months: 0 new rows, 0 adjusted." in again.stdout
    assert "this run changed nothing" in again.stdout


def test_a_range_of_months_is_settled_one_by_one(demo: Result) -> None:
    settled = invoke("settle", "--from", "2026-02", "--to", "2026-03")
    assert settled.exit_code == 0
    assert [line.split()[0] for line in settled.stdout.splitlines()] == ["2026-02", "2026-03"]
    assert settled.stdout.count("0 new rows") == 2


def test_status_shows_each_month(demo: Result) -> None:
    status = invoke("status")
    assert status.exit_code == 0
    assert [line.split()[:2] for line in status.stdout.splitlines()[1:4]] == [
        ["2026-01", "SETTLED"],
        ["2026-02", "SETTLED"],
        ["2026-03", "SETTLED"],
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
