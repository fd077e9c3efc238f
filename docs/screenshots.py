"""Takes the pictures in docs/images from the real pages: `python -m docs.screenshots`, where a Chromium is installed.

A demo of its own is made, and the guide for analysts is walked on it as its test does; each step says what there is to
see.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path

from playwright.sync_api import Page

from tests.end_to_end.back_office import ASSET
from tests.end_to_end.browser import browsing, installed, open_asset
from tests.end_to_end.guide import STEPS, Walk, demo_office
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.months import Month

IMAGES = Path(__file__).parent / "images"
# With the months that are left a year.
BEGINNING = Month(2024, 7)
ORGANIZATIONS = 400
# A traceback names the folder in which the pictures happen to be taken.
_WITHOUT_PATH = """path => {
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data.replaceAll(path, "");
}"""


def main() -> None:
    """Write all pictures."""
    chromium = installed()
    if chromium is None:
        sys.exit("There is no Chromium on this machine.")
    folder = Path(tempfile.mkdtemp(prefix="tf-"))
    folder.chmod(0o755)  # Postgres runs as another account when we are root
    project = folder / "ticketflow"
    try:
        with demo_office(project, ORGANIZATIONS, BEGINNING) as office, browsing(chromium, office.address) as page:
            # Small, and without the list of pages, so that it can be read where it is shown smaller still.
            page.set_viewport_size({"width": 1360, "height": 900})
            page.goto("/assets")
            page.get_by_text("Hide navigation").click()
            walk = Walk(office, page, partial(take, page))
            for step in STEPS.values():
                step(walk)
            open_asset(page, ASSET, "Checks")
            page.get_by_text("honest", exact=True).first.click()
            page.get_by_text("No month is bad.").wait_for()
            take(page, "checks")
    finally:
        EmbeddedServer(project / ".ticketflow").remove()
        shutil.rmtree(folder)


def take(page: Page, name: str) -> None:
    """One picture, once nothing moves on the page any more."""
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(1_000)
    page.evaluate(_WITHOUT_PATH, f"{IMAGES.parents[1]}/")
    page.screenshot(path=IMAGES / f"{name}.png", animations="disabled")


if __name__ == "__main__":
    main()
