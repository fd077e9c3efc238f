"""A real browser on the web pages, without a screen."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Page, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome")
# The rest keeps it from calling home, which would only cost time where there is no network.
_ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run", "--disable-sync",
    "--disable-component-update",
)  # fmt: skip


def installed() -> str | None:
    """The path of a Chromium on this machine, if there is one."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


@contextmanager
def browsing(chromium: str, address: str) -> Iterator[Page]:
    """A page that takes paths below `address`; everything it waits for has a bound of half a minute."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(_ARGUMENTS))
        try:
            page = browser.new_page(base_url=address, viewport={"width": 1440, "height": 900})
            page.set_default_timeout(30_000)
            yield page
        finally:
            browser.close()


def backfill(page: Page, asset: str, months: str) -> None:
    """Launch a backfill of `months` (`[2025-01...2025-03]`) by the clicks of an analyst."""
    page.goto(f"/assets/{asset}?view=partitions")
    page.get_by_role("button", name="Materialize").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_placeholder("ex:").fill(months)
    dialog.get_by_placeholder("ex:").press("Enter")
    dialog.get_by_role("button", name="Launch backfill").click()
    dialog.wait_for(state="hidden")


def open_month(page: Page, asset: str, month: str) -> None:
    """Open what the pages have to say about one month."""
    page.goto(f"/assets/{asset}?view=partitions&partition={month}")
    page.get_by_text("Latest materialization").wait_for()
