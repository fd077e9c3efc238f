"""A real browser on the web pages, without a screen."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Locator, Page, expect, sync_playwright

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
            page = browser.new_page(
                base_url=address, viewport={"width": 1440, "height": 900}, reduced_motion="reduce"
            )  # fmt: skip
            page.set_default_timeout(PATIENCE)
            # What is expected has a bound of its own.
            expect.set_options(timeout=PATIENCE)
            yield page
        finally:
            browser.close()


def open_asset(page: Page, asset: str, tab: str | None = None) -> None:
    """Open the page of an asset from the catalog, and one of its tabs."""
    page.locator("a[href='/assets']").first.click()
    page.get_by_title(asset, exact=True).first.click()
    page.wait_for_url(f"**/assets/{asset}*")
    if tab is not None:
        page.get_by_role("tab", name=tab).or_(page.get_by_role("link", name=tab)).first.click()


def open_dialog(page: Page, asset: str, months: str) -> Locator:
    """Open the dialog that launches `months` (`2025-01`, or `[2025-01...2025-03]`) of an asset; returns it."""
    open_asset(page, asset, "Partitions")
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


def open_month(page: Page, asset: str, month: str) -> None:
    """Open what the pages have to say about one month."""
    open_asset(page, asset, "Partitions")
    page.get_by_placeholder("Filter by name").fill(month)
    page.get_by_text(month, exact=True).first.click()
    page.wait_for_url(f"**partition={month}")
    page.get_by_text("Latest materialization").wait_for()


def open_launchpad(page: Page, asset: str, month: str) -> Locator:
    """Open the launchpad of one month, where a run can be given a configuration; returns the dialog.

    A form that is still being set up drops what is chosen in it: its editor takes the focus, and the list of months is
    made anew when the months have come. So both are waited for.
    """
    open_asset(page, asset)
    page.get_by_role("button", name="Materialize").locator("xpath=following::button[1]").click()
    page.get_by_text("Open launchpad").click()
    dialog = launchpad(page)
    is_set_up(dialog)
    dialog.get_by_label("sort_by_alpha").wait_for()
    dialog.get_by_placeholder("Partition").fill(month)
    page.get_by_role("menuitem", name=month, exact=True).click()
    dialog.get_by_text(f"partition: {month}").wait_for()
    is_set_up(dialog)
    return dialog


def launchpad(page: Page) -> Locator:
    """The dialog of the launchpad. Menus and lists are dialogs too, and some stay for a while after their click."""
    return page.get_by_role("dialog").filter(has_text="Launchpad (configure assets)")


def is_set_up(form: Locator) -> None:
    """Wait until the form of a configuration has its configuration, and has judged it."""
    form.locator(".CodeMirror-line", has_text="config:").first.wait_for()
    form.get_by_text("No errors").wait_for()


def set_option(page: Page, form: Locator, name: str, old: str, new: str) -> None:
    """Overwrite the value of one line of a configuration that is set up, and wait until it is found to be right."""
    line = form.locator(".CodeMirror-line", has_text=f"{name}:")
    line.get_by_text(old, exact=True).dblclick()
    page.keyboard.type(new)
    expect(line).to_contain_text(f"{name}: {new}")
    is_set_up(form)
