"""Takes the pictures in docs/images from the real pages: `python -m docs.screenshots`, where a Chromium is installed.

A back office of its own is filled with the demo's data, a year is backfilled by clicking, and then looked at.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page

from tests.end_to_end.back_office import ASSET, BackOffice, opened
from tests.end_to_end.browser import backfill, browsing, installed, open_month
from ticketflow_orch.clock import now
from ticketflow_orch.demo_data import load_demo
from ticketflow_orch.embedded import EmbeddedServer
from ticketflow_orch.months import Month, months_between

IMAGES = Path(__file__).parent / "images"


def main() -> None:
    """Write all pictures."""
    chromium = installed()
    if chromium is None:
        sys.exit("There is no Chromium on this machine.")
    # The month before last in the world's last zone: over everywhere, and the last one that the calendar has.
    last = Month.of_instant(now(), "Pacific/Pago_Pago").previous()
    first = Month(last.year - 1, last.number).next()
    home = Path(tempfile.mkdtemp(prefix="tf-"))
    home.chmod(0o755)  # Postgres runs as another account when we are root
    try:
        with (
            opened(home, TICKETFLOW_FIRST_MONTH=str(first)) as office,
            browsing(chromium, office.address) as page,
        ):
            load_demo(office.engine, last)
            settle(office, page, first, last)
            take_pictures(page, last)
    finally:
        EmbeddedServer(home).remove()
        shutil.rmtree(home)


def settle(office: BackOffice, page: Page, first: Month, last: Month) -> None:
    """Backfill the months by clicking, and wait until all of them are settled."""
    backfill(page, ASSET, f"[{first}...{last}]")
    for month in map(str, months_between(first, last)):
        office.wait_for(lambda month=month: office.metadata(month), month)


def take_pictures(page: Page, month: Month) -> None:
    """The months with the latest one's figures, its charts and tables, the checks, the schedule."""
    open_month(page, ASSET, str(month))
    page.get_by_text("rows settled in").wait_for()
    take(page, "months")
    page.get_by_text("top organizations", exact=True).evaluate("label => label.scrollIntoView({block: 'center'})")
    take(page, "settlement")
    page.goto(f"/assets/{ASSET}?view=checks&checkDetail=honest")
    page.get_by_text("No month is bad.").wait_for()
    take(page, "checks")
    page.goto("/locations/ticketflow/schedules/settlement_schedule")
    page.get_by_text("Next tick").wait_for()
    take(page, "schedule")


def take(page: Page, name: str) -> None:
    """One picture, once nothing moves on the page any more."""
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(1_000)
    page.screenshot(path=IMAGES / f"{name}.png", animations="disabled")


if __name__ == "__main__":
    main()
