"""An analyst at the screen: launches a backfill by clicking, sees it go green, looks at what a month came to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.end_to_end.back_office import ASSET, BackOffice
from tests.end_to_end.browser import backfill, browsing, installed, open_month
from tests.end_to_end.sales import flood


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

    for month, state in (("2025-03", "Materialized"), ("2025-02", "Failed"), ("2025-01", "Materialized")):
        office.wait_for(lambda month=month, state=state: is_shown(page, month, state), f"{month} {state}")
    shows_what_january_came_to(page)


def is_shown(page: Page, month: str, state: str) -> bool:
    # Opened anew each time: the list of months follows what happens, what stands beside it does not.
    open_month(page, ASSET, month)
    return page.get_by_text(state, exact=True).is_visible()


def shows_what_january_came_to(page: Page) -> None:
    """In sentences, tables and pictures."""
    expect(page.get_by_text("2025-01: 20 rows settled in")).to_be_visible()
    expect(page.get_by_role("cell", name="1,848.00", exact=True)).to_be_visible()
    expect(page.get_by_role("row", name="EUR Hall 20 176.00 200.00 0.00 hall-20")).to_be_visible()
    months = page.get_by_role("img", name="2024-01 to 2025-01")
    expect(months).to_be_visible()
    assert months.evaluate("image => image.naturalWidth") == 13 * 20
    for hidden in ("[Show Markdown]", "[Show JSON]"):
        expect(page.get_by_text(hidden)).to_have_count(0)
