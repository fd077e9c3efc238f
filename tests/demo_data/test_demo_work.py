"""What the demo leaves to do: found by the commands that it prints, and done by them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from typer.testing import CliRunner, Result

from tests.support.homes import fresh_home
from ticketflow_orch import cli
from ticketflow_orch.cli.session import database
from ticketflow_orch.local import databases
from ticketflow_orch.settings import settings

DEMO = ("demo", "--organizations", "110", "--months", "6")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, arguments, catch_exceptions=False)


def asked(query: str) -> list[tuple[Any, ...]]:
    with database("test") as engine, engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text(query))]


def do_the_work() -> None:
    settled = invoke("settle", "--from", "2026-01", "--to", "2026-03")
    assert settled.exit_code == 1
    assert [line[:16] for line in settled.stdout.splitlines() if line.startswith("2026-")] == [
        "2026-01 settled:",
        "2026-02 settled:",
        "2026-03 failed: ",
    ]
    assert re.search(r"10\d organizations are parked in 2026-03 and demo-\d+ fails too", settled.stdout)
    assert re.search(r"^demo-theatre +2026-01 +2025-12 +USD", invoke("late").stdout, re.MULTILINE)

    assert invoke("import", str(settings().home / "corrections")).exit_code == 0
    assert invoke("unpark", "demo-club").exit_code == 0
    assert invoke("settle", "2026-03").exit_code == 0
    assert invoke("close", "--from", "2026-01", "--to", "2026-03").exit_code == 0
    assert [state for _, state in states()] == ["CLOSED"] * 6
    assert invoke("payouts", "release", "--month", "2025-12").exit_code == 0
    assert invoke("outbox", "deliver").exit_code == 0
    assert asked("SELECT DISTINCT state FROM payout") == [("CONFIRMED",)]
    assert "Left for you to do" not in invoke(*DEMO).stdout


def states() -> list[tuple[str, str]]:
    return asked("SELECT to_char(month, 'YYYY-MM'), state FROM settlement_period ORDER BY month")


@contextmanager
def made(scratch: Path) -> Iterator[Result]:
    """A home whose clock stands still in April 2026, with the demo run once; what that printed."""
    with fresh_home(scratch, TICKETFLOW_FIXED_CLOCK="2026-04-15T10:00:00Z"):
        databases.ensure_running(settings())
        yield invoke(*DEMO)


@pytest.fixture(scope="module")
def demo(scratch: Path) -> Iterator[Result]:
    """A demo for those that only look."""
    with made(scratch) as result:
        yield result


def test_the_demo_finishes_all_but_three_months_and_says_what_is_left(demo: Result) -> None:
    assert demo.exit_code == 0, demo.stdout
    assert states() == [("2025-10", "CLOSED"), ("2025-11", "CLOSED"), ("2025-12", "CLOSED")]
    left = demo.stdout.split("Left for you to do")[1]
    for what, by in (
        ("2026-01 to 2026-03", "ticketflow settle --from 2026-01 --to 2026-03"),
        ("2026-03", f"ticketflow import {settings().home}/corrections"),
        ("2025-12", "ticketflow late"),
        ("demo-club", "ticketflow unpark demo-club"),
        ("2025-12", "ticketflow payouts release --month 2025-12"),
    ):
        assert re.search(rf"^{what} .* {re.escape(by)}\s*$", left, re.MULTILINE), left


def test_one_payout_is_held_and_all_others_are_confirmed(demo: Result) -> None:
    [(held, currency, reason)] = asked("""
        SELECT external_ref, payout.currency, reason FROM payout JOIN organization ON organization.id = organization_id
        WHERE state <> 'CONFIRMED'
    """)
    assert (held, currency) == ("demo-arena", "CHF")
    assert reason.startswith("review: ")


def test_the_demo_repeated_changes_nothing_and_says_what_is_still_left(demo: Result) -> None:
    before = (settings().home / "outbox.jsonl").read_bytes()
    again = invoke(*DEMO)
    assert again.exit_code == 0
    assert "this run changed nothing" in again.stdout
    assert again.stdout.split("Left for you to do")[1] == demo.stdout.split("Left for you to do")[1]
    assert (settings().home / "outbox.jsonl").read_bytes() == before
    assert len(states()) == 3


def test_the_commands_that_the_demo_prints_do_the_work(scratch: Path) -> None:
    with made(scratch):
        do_the_work()
