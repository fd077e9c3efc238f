"""The guide for analysts, walked: for each of its headings what an analyst clicks, and what must then be seen."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from playwright.sync_api import Page, expect
from sqlalchemy import text

from tests.end_to_end.back_office import BIN, BackOffice, Run, bare_environment, opened
from tests.end_to_end.browser import (
    backfill,
    is_set_up,
    launch,
    launchpad,
    open_asset,
    open_dialog,
    open_launchpad,
    open_month,
    set_option,
)
from ticketflow_orch.cli.demo_output import GUIDE_MONTH
from ticketflow_orch.demo_data.work import ARENA, CLUB, THEATRE
from ticketflow_orch.months import Month, months_between

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "analysts.md"
# What the guide's examples name: the last month that the demo closes and those that it leaves, and organizations.
CLOSED, FIRST, NEXT, LAST = GUIDE_MONTH, "2025-04", "2025-05", "2025-06"
PARKED = "demo-00011"
# Columns of the payouts' table.
HELD, CONFIRMED = 3, 5
# Business time: June 2025 is over everywhere.
NOW = "2025-07-10T05:00:00Z"


@dataclass(frozen=True, slots=True)
class Walk:
    """An analyst on the pages of an office; `picture` gets what there is to see, by the name of an image."""

    office: BackOffice
    page: Page
    picture: Callable[[str], None] = lambda _: None
    ran: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """The project's folder, in which commands are given."""
        return self.office.home.parent

    def board_address(self) -> str:
        """Where the board is, as `ticketflow ui` has printed."""
        said = (self.office.home / "logs" / "ui.log").read_text("utf-8")
        return str(re.findall(r"^How far every month is: (\S+)$", said, re.MULTILINE)[0])

    def all_is_paid(self) -> bool:
        """Whether every payout is confirmed."""
        return _number(self.office, "SELECT count(*) FROM payout WHERE state <> 'CONFIRMED'") == 0

    def run(self, command: str) -> str:
        """What a command of the guide prints."""
        self.ran.append(command)
        name, *arguments = shlex.split(command)
        done = subprocess.run(
            [BIN / name, *arguments], env=self.office.environment, cwd=self.folder, capture_output=True, text=True,
            check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def launched(self) -> Run:
        """The run that the page says it has launched, once it has succeeded."""
        said = self.page.get_by_text(re.compile(r"Launched run [0-9a-f]{8}")).last.inner_text()
        short = re.findall(r"Launched run ([0-9a-f]{8})", said)[-1]
        return self.succeeded(next(run.id for run in self.office.runs() if run.id.startswith(short)))

    def shown(self) -> Run:
        """The run whose page has been opened, once it has succeeded."""
        self.page.wait_for_url("**/runs/*")
        return self.succeeded(self.page.url.rsplit("/", 1)[1])

    def succeeded(self, run_id: str) -> Run:
        """The run, once it has succeeded."""
        run = self.office.wait_for_run(run_id)
        assert run.status == "SUCCESS", self.office.failure(run_id)
        return run

    def sees(self, text: str | re.Pattern[str]) -> None:
        """Wait until the page shows `text`; no Markdown may be hidden behind a link, and no JSON shown."""
        self.page.get_by_text(text).first.wait_for()
        for hidden in ("[Show Markdown]", "[Show JSON]"):
            expect(self.page.get_by_text(hidden)).to_have_count(0)

    def sees_row(self, pattern: str) -> None:
        """Wait until a table on the page has a row that begins as `pattern` does."""
        self.page.get_by_role("row", name=re.compile(f"^{pattern}")).first.wait_for()


@contextmanager
def demo_office(folder: Path, organizations: int, first: Month) -> Iterator[BackOffice]:
    """An office in `folder`, which stands for the project's, with a demo that begins in `first` and leaves its work.

    The schedules of months are off: their hours may come while it is open.
    """
    home = folder / ".ticketflow"
    months = len(list(months_between(first, Month.parse(LAST))))
    variables = {
        "TICKETFLOW_FIRST_MONTH": str(first), "TICKETFLOW_FIXED_CLOCK": NOW,
        # A handful of organizations has quiet months, which are no reason to hold anything.
        "TICKETFLOW_PAYOUT_REVIEW_FACTOR": "5",
    }  # fmt: skip
    folder.mkdir(parents=True)
    made = subprocess.run(
        [BIN / "ticketflow", "demo", "--months", str(months), "--organizations", str(organizations)],
        cwd=folder, env=bare_environment(home) | variables, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert made.returncode == 0, f"{made.stdout}{made.stderr}"
    with opened(home, **variables) as office:
        office.leave_to_people()
        yield office


def commands(guide: str) -> Mapping[str, list[str]]:
    """The commands of each section of the guide, by its heading."""
    sections = re.split(r"^## (.+)$", guide, flags=re.MULTILINE)[1:]
    return {
        heading: re.findall(r"^ticketflow .+$", section, re.MULTILINE)
        for heading, section in zip(sections[::2], sections[1::2], strict=True)
    }


def see_the_board(walk: Walk) -> None:
    walk.page.goto(walk.board_address())
    walk.page.get_by_role("button", name="Materialize").first.click()
    walk.launched()
    open_asset(walk.page, "months_board", "Events")
    walk.sees(f"{CLOSED}: release 1 payout held.")
    walk.sees("1 organization parked.")
    walk.sees(f"{CLOSED}: late money of 1 organization waits to be posted.")
    walk.sees_row(f"{FIRST} open settle it")
    months = walk.page.get_by_role("img", name=f"to {LAST}")
    # Visible is not loaded; complete, but without a width, is one that could not be.
    expect(months).to_have_js_property("complete", True)
    expect(months).not_to_have_js_property("naturalWidth", 0)
    walk.picture("board")


def try_a_pass(walk: Walk) -> None:
    before = _entries(walk.office)
    dialog = open_launchpad(walk.page, "monthly_settlement", FIRST)
    set_option(walk.page, dialog, "dry_run", "false", "true")
    dialog.get_by_role("button", name="Materialize").last.click()
    walk.shown()
    open_asset(walk.page, "monthly_settlement", "Events")
    walk.sees("Dry run: nothing was posted.")
    walk.sees_row(f"{CLOSED} USD .* 1$")
    walk.picture("dry-run")
    said = walk.run(f"ticketflow settle {FIRST} --dry-run --file dry-run.csv")
    assert "dry run: nothing was posted" in said
    assert f'"{THEATRE}","{FIRST}","{CLOSED}"' in (walk.folder / "dry-run.csv").read_text("utf-8")
    assert _entries(walk.office) == before


def settle_a_span(walk: Walk) -> None:
    dialog = open_dialog(walk.page, "monthly_settlement", f"[{FIRST}...{LAST}]")
    walk.picture("backfill")
    launch(dialog)
    for month in (FIRST, NEXT):
        walk.office.wait_for(partial(walk.office.metadata, month), month)
    walk.office.wait_for(
        lambda: any(run.status == "FAILURE" for run in walk.office.runs(dagster_partition=LAST)), f"{LAST} to fail"
    )


def fix_a_month(walk: Walk) -> None:
    open_month(walk.page, "monthly_settlement", LAST)
    walk.sees(re.compile("failed, and did not materialize this asset"))
    walk.page.locator("a[href*='/runs/']").first.click()
    walk.page.wait_for_url("**/runs/*")
    walk.sees(re.compile(f"organizations are parked in {LAST} and .* fails too"))
    walk.picture("failed")
    assert "brought" in walk.run("ticketflow import .ticketflow/corrections")
    backfill(walk.page, "monthly_settlement", LAST)
    walk.launched()
    open_month(walk.page, "monthly_settlement", LAST)
    walk.sees("rows settled in")


def run_a_month_again(walk: Walk) -> None:
    open_month(walk.page, "monthly_settlement", NEXT)
    walk.sees("rows settled in")
    walk.sees_row("currency net captures")
    walk.picture("settlement")
    walk.page.get_by_role("button", name="Materialize").first.click()
    launch(walk.page.get_by_role("dialog"))
    walk.launched()
    open_month(walk.page, "monthly_settlement", NEXT)
    walk.sees("Nothing came late.")


def read_what_came_late(walk: Walk) -> None:
    open_month(walk.page, "monthly_settlement", FIRST)
    walk.sees("came late")
    walk.sees_row(f"{THEATRE} USD {CLOSED}")
    walk.picture("late")
    assert THEATRE in walk.run("ticketflow late")


def park(walk: Walk) -> None:
    assert f"from {FIRST} on" in walk.run(f'ticketflow park {PARKED} --reason "bank account is disputed"')
    said = walk.run("ticketflow park")
    assert PARKED in said
    assert CLUB in said


def close_a_month(walk: Walk) -> None:
    backfill(walk.page, "closed_books", FIRST)
    walk.launched()
    open_month(walk.page, "closed_books", FIRST)
    walk.sees(f"{FIRST} is closed.")
    walk.sees_row(f"{CLUB} .*bank account is disputed")
    walk.picture("books")


def unpark(walk: Walk) -> None:
    assert "is not parked any more" in walk.run(f"ticketflow unpark {CLUB}")


def pay_a_month(walk: Walk) -> None:
    backfill(walk.page, "payouts", FIRST)
    walk.launched()
    open_month(walk.page, "payouts", FIRST)
    walk.sees(re.compile("payouts requested"))
    walk.sees_row("currency total payouts held")


def release(walk: Walk) -> None:
    held = walk.run(f"ticketflow payouts list --month {CLOSED} --state held")
    assert re.search(f"{ARENA} .*review:", held)
    assert " released." in walk.run(f"ticketflow payouts release --month {CLOSED}")
    walk.office.wait_for(walk.all_is_paid, "the demo's provider to have confirmed everything")
    backfill(walk.page, "payouts", CLOSED)
    walk.launched()
    open_month(walk.page, "payouts", CLOSED)
    cells = walk.page.get_by_role("row", name=re.compile("^CHF ")).first.get_by_role("cell")
    expect(cells.nth(HELD)).to_be_empty()
    expect(cells.nth(CONFIRMED)).to_have_text(re.compile(r"\d"))
    walk.picture("payouts")
    assert "CONFIRMED" in walk.run(f"ticketflow payouts list --month {CLOSED}")
    assert "No movement looks wrong." in walk.run("ticketflow anomalies list")


def find_a_statement(walk: Walk) -> None:
    backfill(walk.page, "settlement_statements", FIRST)
    walk.launched()
    open_month(walk.page, "settlement_statements", FIRST)
    walk.sees(re.compile(f"statements of {FIRST} in"))
    (address,) = walk.run(f"ticketflow statement {THEATRE} {FIRST}").splitlines()
    walk.page.goto(Path(address).absolute().as_uri())
    walk.sees("Closing balance")
    walk.picture("statement")
    walk.page.go_back()


def explain(walk: Walk) -> None:
    walk.page.locator("a[href='/jobs']").first.click()
    walk.page.get_by_text("explain_job", exact=True).first.click()
    walk.page.wait_for_url("**/explain_job*")
    walk.page.get_by_role("button", name="Materialize").first.click()
    dialog = launchpad(walk.page)
    is_set_up(dialog)
    set_option(walk.page, dialog, "organization", '""', THEATRE)
    set_option(walk.page, dialog, "month", '""', f"'{FIRST}'")
    dialog.get_by_role("button", name="Materialize").last.click()
    walk.shown()
    open_asset(walk.page, "explanation", "Events")
    walk.sees(f"({THEATRE}), {FIRST}, closed:")
    walk.sees_row("currency opening net returned settled elsewhere due payable closing")
    walk.picture("explanation")
    assert "Lines by rate" in walk.run(f"ticketflow explain {THEATRE} {FIRST}")


STEPS: Mapping[str, Callable[[Walk], None]] = {
    "See how far every month is": see_the_board,
    "Try a pass without posting": try_a_pass,
    "Settle a span of months": settle_a_span,
    "Fix a month that failed": fix_a_month,
    "Re-run a month": run_a_month_again,
    "Read what came late": read_what_came_late,
    "Park an organization": park,
    "Close a month": close_a_month,
    "Let a parked organization go on": unpark,
    "Pay a closed month": pay_a_month,
    "Release what is held for review": release,
    "Find a statement": find_a_statement,
    "Explain one organization": explain,
}


def _entries(office: BackOffice) -> int:
    return _number(office, "SELECT count(*) FROM ledger_entry")


def _number(office: BackOffice, query: str) -> int:
    with office.engine.connect() as connection:
        return int(connection.execute(text(query)).scalar_one())
