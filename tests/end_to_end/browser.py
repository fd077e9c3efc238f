"""A real browser on the web pages, without a screen."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from playwright.sync_api import Error, Locator, Page, expect, sync_playwright

# In milliseconds.
PATIENCE = 90_000
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
    """A page that takes paths below `address`; everything it waits for has a bound of a minute and a half."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(_ARGUMENTS))
        try:
            page = browser.new_page(base_url=address, viewport={"width": 1440, "height": 900})
            page.set_default_timeout(PATIENCE)
            # What is expected has a bound of its own.
            expect.set_options(timeout=PATIENCE)
            yield page
        finally:
            browser.close()


def open_dialog(page: Page, asset: str, months: str) -> Locator:
    """Open the dialog that launches `months` (`2025-01`, or `[2025-01...2025-03]`) of an asset; returns it."""
    page.goto(f"/assets/{asset}?view=partitions")
    page.get_by_role("button", name="Materialize").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_placeholder("ex:").fill(months)
    dialog.get_by_placeholder("ex:").press("Enter")
    return dialog


def launch(dialog: Locator) -> None:
    """Launch what an open dialog has chosen."""
    dialog.get_by_role("button", name=re.compile("^Launch")).click()
    dialog.wait_for(state="hidden")


def backfill(page: Page, asset: str, months: str) -> None:
    """Launch a backfill of `months` (`[2025-01...2025-03]`), or one month, by the clicks of an analyst."""
    launch(open_dialog(page, asset, months))


def materialize_now(page: Page, asset: str) -> None:
    """Launch an asset that has no months."""
    page.goto(f"/assets/{asset}")
    page.get_by_role("button", name="Materialize").first.click()


def open_launchpad(page: Page, asset: str, month: str) -> Locator:
    """Open the launchpad of one month, where a run can be given a configuration; returns the dialog."""
    page.goto(f"/assets/{asset}?view=partitions&partition={month}")
    page.get_by_role("button", name="Materialize").locator("xpath=following::button[1]").click()
    page.get_by_text("Open launchpad").click()
    # The list of months is a dialog too, while it is open, and comes after it.
    dialog = page.get_by_role("dialog").first
    field = dialog.get_by_placeholder("Partition")
    # A form that is still being set up closes the list of months. Once one is chosen there is no field any more.
    for _ in range(5):
        with suppress(Error):
            field.fill("", timeout=5_000)
            field.fill(month, timeout=5_000)
            # Enter takes whatever the list shows at that moment.
            page.get_by_role("menuitem", name=month, exact=True).click(timeout=5_000)
        with suppress(Error):
            dialog.get_by_text(f"partition: {month}").wait_for(timeout=20_000)
            return dialog
    raise AssertionError(f"{month} cannot be chosen in the launchpad of {asset}.")


def set_option(page: Page, form: Page | Locator, name: str, old: str, new: str) -> None:
    """Overwrite the value of one line of a configuration, and wait until it is found to be right.

    The form writes its configuration anew while it is being set up, over whatever was typed before.
    """
    line = form.locator(".CodeMirror-line", has_text=f"{name}:")
    for _ in range(5):
        line.get_by_text(old, exact=True).dblclick()
        page.keyboard.type(new)
        # A form that is still being set up has not judged anything yet, and may overwrite what looks right.
        form.get_by_text("No errors").wait_for()
        page.wait_for_timeout(1_000)
        if f"{name}: {new}" in line.inner_text():
            return
    raise AssertionError(f"{name} does not stay {new}: {line.inner_text()}")


def open_month(page: Page, asset: str, month: str) -> None:
    """Open what the pages have to say about one month."""
    page.goto(f"/assets/{asset}?view=partitions&partition={month}")
    page.get_by_text("Latest materialization").wait_for()
