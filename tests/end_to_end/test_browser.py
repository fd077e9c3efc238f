"""An analyst at the screen: launches a backfill by clicking, sees it go green, looks at what a month came to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import pytest
from playwright.sync_api import Page, expect
from playwright.sync_api import TimeoutError as PlaywrightTimeoutError

from tests.end_to_end.back_office import ASSET, BackOffice
from tests.end_to_end.browser import backfill, browsing, installed, open_month
from tests.end_to_end.sales import flood

GREEN = re.compile("^Materialized$")
RED = re.compile("failed, and did not materialize this asset")


@pytest.fixture
def page(office: BackOffice) -> Iterator[Page]:
    chromium = installed()
    if chromium is None:
        pytest.skip("there is no Chromium on this machine")
    with browsing(chromium, office.address) as page:
        yield page


def test_three_months_are_backfilled_by_clicking_and_the_bad_one_is_red_alone(page: Page, office: BackOffice) -> None:
    flood(office.engine, "2025-02")

    backfill(page, ASSET, "[2025-01...2025-03]")

    for month, sentence in (("2025-01", GREEN), ("2025-02", RED), ("2025-03", GREEN)):
        office.wait_for(partial(says, page, month, sentence), f"{month} to say {sentence}")
    open_month(page, ASSET, "2025-01")
    shows_what_january_came_to(page)


def says(page: Page, month: str, sentence: re.Pattern[str]) -> bool:
    # Opened anew each time: the list of months follows what happens, what stands beside it does not.
    open_month(page, ASSET, month)
    with suppress(PlaywrightTimeoutError):
        page.get_by_text(sentence).wait_for(timeout=5_000)
        return True
    return False


def shows_what_january_came_to(page: Page) -> None:
    """In sentences, tables and pictures."""
    expect(page.get_by_text("2025-01: 20 rows settled in")).to_be_visible()
    expect(page.get_by_role("cell", name="1,848.00", exact=True)).to_be_visible()
    expect(page.get_by_role("row", name="EUR Hall 20 176.00 200.00 0.00 hall-20", exact=True)).to_be_visible()
    months = page.get_by_role("img", name="to 2025-01")
    expect(months).to_be_visible()
    assert months.evaluate("image => image.complete && image.naturalWidth > 0")
    for hidden in ("[Show Markdown]", "[Show JSON]"):
        expect(page.get_by_text(hidden)).to_have_count(0)
