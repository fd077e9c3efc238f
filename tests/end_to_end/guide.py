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

from tests.end_to_end.back_office import BIN, BackOffice, Run, opened
from tests.end_to_end.browser import (
    backfill,
    launch,
    materialize_now,
    open_dialog,
    open_launchpad,
    open_month,
    set_option,
)
from tests.payments import SECRET, configuration
from tests.provider import Provider
from tests.rows import add_movement
from ticketflow_orch.demo_data import load_demo
from ticketflow_orch.months import Month, months_between

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "analysts.md"
# What the guide's examples name: months that the walk settles, the first of which it closes; and organizations.
FIRST, LATE, LAST = "2025-04", "2025-05", "2025-06"
THEATRE, PARKED, ARENA = "demo-00015", "demo-00011", "demo-00005"
# Columns of the payouts' table.
HELD, CONFIRMED = 3, 5
# Business time: June 2025 is over everywhere.
NOW = "2025-07-10T05:00:00Z"


@dataclass(frozen=True, slots=True)
class Walk:
    """An analyst on the pages of an office; `picture` is told what there is to see, by the name of an image."""

    office: BackOffice
    page: Page
    picture: Callable[[str], None] = lambda _: None
    ran: list[str] = field(default_factory=list)

    def run(self, command: str) -> str:
        """What a command of the guide prints."""
        self.ran.append(command)
        name, *arguments = shlex.split(command)
        done = subprocess.run(
            [BIN / name, *arguments], env=self.office.environment, cwd=self.office.home, capture_output=True, text=True,
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
def guide_office(home: Path, first: Month, organizations: int) -> Iterator[tuple[BackOffice, Provider]]:
    """An office in which the demo's organizations have sold from `first` on, and the provider that pays them.

    In the first month of the walk one has sold far more than ever. The schedules of months are off: their hours may
    come while it is open.
    """
    home.mkdir(parents=True, exist_ok=True)
    provider = Provider(home / "provider.jsonl")
    provider.start()
    try:
        with opened(
            home,
            TICKETFLOW_FIRST_MONTH=str(first),
            TICKETFLOW_FIXED_CLOCK=NOW,
            TICKETFLOW_PAYOUTS_FROM=str(first),
            # A handful of organizations has quiet months, which are no reason to hold anything.
            TICKETFLOW_PAYOUT_REVIEW_FACTOR="10",
            TICKETFLOW_DELIVERY=str(configuration(provider, home, deadline=20)),
            **SECRET,
        ) as office:
            for schedule in ("settlement_schedule", "close_books_schedule", "payouts_schedule", "statements_schedule"):
                office.stop_schedule(schedule)
            months = len(list(months_between(first, Month.parse(LAST))))
            load_demo(office.engine, Month.parse(LAST), months, organizations)
            concert = {"currency": "GBP", "external_ref": "stadium-concert"}
            add_movement(office.engine, _organization(office, ARENA), 60_000_000, f"{FIRST}-20T20:00", **concert)
            yield office, provider
    finally:
        provider.kill()


def commands(guide: str) -> Mapping[str, list[str]]:
    """The commands of each section of the guide, by its heading."""
    sections = re.split(r"^## (.+)$", guide, flags=re.MULTILINE)[1:]
    return {
        heading: re.findall(r"^ticketflow .+$", section, re.MULTILINE)
        for heading, section in zip(sections[::2], sections[1::2], strict=True)
    }


def see_the_board(walk: Walk) -> None:
    materialize_now(walk.page, "months_board")
    walk.launched()
    walk.page.goto("/assets/months_board?view=events")
    walk.sees_row(f"{FIRST} open settle it")
    walk.page.get_by_role("img", name=f"to {LAST}").wait_for()
    walk.picture("board")


def settle_a_span(walk: Walk) -> None:
    dialog = open_dialog(walk.page, "monthly_settlement", f"[{FIRST}...{LAST}]")
    walk.picture("backfill")
    launch(dialog)
    for month in (FIRST, LATE, LAST):
        walk.office.wait_for(partial(walk.office.metadata, month), month)
    open_month(walk.page, "monthly_settlement", LAST)
    walk.sees("rows settled in")
    walk.sees_row("currency net captures")
    walk.picture("settlement")


def run_a_month_again(walk: Walk) -> None:
    backfill(walk.page, "monthly_settlement", LAST)
    walk.launched()
    open_month(walk.page, "monthly_settlement", LAST)
    walk.sees("Nothing came late.")


def try_a_pass(walk: Walk) -> None:
    late = {"currency": "USD", "external_ref": "late-sale"}
    add_movement(walk.office.engine, _organization(walk.office, THEATRE), 12_000, f"{LATE}-28T19:00", **late)
    before = _entries(walk.office)
    dialog = open_launchpad(walk.page, "monthly_settlement", LATE)
    set_option(walk.page, dialog, "dry_run", "false", "true")
    dialog.get_by_role("button", name="Materialize").last.click()
    walk.shown()
    walk.page.goto("/assets/monthly_settlement?view=events")
    walk.sees("Dry run: nothing was posted.")
    walk.sees_row(f"{THEATRE} {LATE} USD .* adjustment")
    walk.picture("dry-run")
    said = walk.run(f"ticketflow settle {LATE} --dry-run --file dry-run.csv")
    assert "dry run: nothing was posted" in said
    assert THEATRE in (walk.office.home / "dry-run.csv").read_text("utf-8")
    assert _entries(walk.office) == before


def read_what_came_late(walk: Walk) -> None:
    backfill(walk.page, "monthly_settlement", LATE)
    walk.launched()
    open_month(walk.page, "monthly_settlement", LATE)
    walk.sees("came late")
    walk.sees_row(f"{THEATRE} USD {LATE}")
    walk.picture("late")
    assert THEATRE in walk.run("ticketflow late")


def park(walk: Walk) -> None:
    assert f"from {FIRST} on" in walk.run(f'ticketflow park {PARKED} --reason "bank account is disputed"')
    assert "bank account is disputed" in walk.run("ticketflow park")


def close_a_month(walk: Walk) -> None:
    backfill(walk.page, "closed_books", FIRST)
    walk.launched()
    open_month(walk.page, "closed_books", FIRST)
    walk.sees(f"{FIRST} is closed.")
    walk.sees_row(f"{PARKED} .*bank account is disputed")
    walk.picture("books")


def unpark(walk: Walk) -> None:
    assert "is not parked any more" in walk.run(f"ticketflow unpark {PARKED}")


def pay_a_month(walk: Walk) -> None:
    backfill(walk.page, "payouts", FIRST)
    walk.launched()
    open_month(walk.page, "payouts", FIRST)
    walk.sees("held for review")
    walk.sees_row("currency total payouts held")
    walk.picture("payouts")


def release(walk: Walk) -> None:
    held = walk.run(f"ticketflow payouts list --month {FIRST} --state held")
    assert re.search(f"{ARENA} .*review:", held)
    assert " released." in walk.run(f"ticketflow payouts release --month {FIRST}")
    walk.office.wait_for(lambda: not _unpaid(walk.office), "the provider to have paid everybody")
    backfill(walk.page, "payouts", FIRST)
    walk.launched()
    open_month(walk.page, "payouts", FIRST)
    cells = walk.page.get_by_role("row", name=re.compile("^GBP ")).first.get_by_role("cell")
    expect(cells.nth(HELD)).to_be_empty()
    expect(cells.nth(CONFIRMED)).to_have_text(re.compile(r"\d"))
    assert "CONFIRMED" in walk.run(f"ticketflow payouts list --month {FIRST}")


def find_a_statement(walk: Walk) -> None:
    backfill(walk.page, "settlement_statements", FIRST)
    walk.launched()
    open_month(walk.page, "settlement_statements", FIRST)
    walk.sees(re.compile(f"statements of {FIRST} in"))
    (address,) = walk.run(f"ticketflow statement {THEATRE} {FIRST}").splitlines()
    walk.page.goto(Path(address).absolute().as_uri())
    walk.sees("Closing balance")
    walk.picture("statement")


def explain(walk: Walk) -> None:
    walk.page.goto("/locations/ticketflow/jobs/explain_job/playground")
    set_option(walk.page, walk.page, "organization", "''", THEATRE)
    set_option(walk.page, walk.page, "month", "''", f"'{FIRST}'")
    walk.page.get_by_role("button", name="Launch Run").click()
    walk.shown()
    walk.page.goto("/assets/explanation?view=events")
    walk.sees(f"({THEATRE}), {FIRST}, closed:")
    walk.sees_row("currency opening net returned due payable closing")
    walk.picture("explanation")
    assert "Lines by rate" in walk.run(f"ticketflow explain {THEATRE} {FIRST}")


STEPS: Mapping[str, Callable[[Walk], None]] = {
    "See how far every month is": see_the_board,
    "Settle a span of months": settle_a_span,
    "Re-run a month": run_a_month_again,
    "Try a pass without posting": try_a_pass,
    "Read what came late": read_what_came_late,
    "Park an organization": park,
    "Close a month": close_a_month,
    "Let a parked organization go on": unpark,
    "Pay a closed month": pay_a_month,
    "Release what is held for review": release,
    "Find a statement": find_a_statement,
    "Explain one organization": explain,
}


def _organization(office: BackOffice, external_ref: str) -> int:
    return _number(office, "SELECT id FROM organization WHERE external_ref = :it", external_ref)


def _entries(office: BackOffice) -> int:
    return _number(office, "SELECT count(*) FROM ledger_entry")


def _unpaid(office: BackOffice) -> int:
    query = "SELECT count(*) FROM payout WHERE state <> 'CONFIRMED' AND to_char(month, 'YYYY-MM') = :it"
    return _number(office, query, FIRST)


def _number(office: BackOffice, query: str, value: str = "") -> int:
    with office.engine.connect() as connection:
        return int(connection.execute(text(query), {"it": value}).scalar_one())
