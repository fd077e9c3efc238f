"""The picture of the months: a bar where money was, below the line where it was lost, and small enough to be shown."""

from __future__ import annotations

import re
from urllib.parse import unquote
from xml.etree import ElementTree

from assets.month_chart import month_chart
from ticketflow_orch.months import Month, months_between

SHOWN_IN_PLACE = 1000


def bars(markdown: str) -> list[tuple[int, int]]:
    """Where each bar of the picture stands and how far it goes up (negative: down), left to right."""
    address = re.search(r"<data:image/svg\+xml,(.*)>", markdown)
    assert address is not None
    root = ElementTree.fromstring(unquote(address[1]))
    drawn = "".join(path.attrib["d"] for path in root if path.attrib.get("stroke-width"))
    return [(int(x), -int(up)) for x, up in re.findall(r"M(\d+) \d+v(-?\d+)", drawn)]


def test_a_bar_is_as_long_as_its_month_is_large() -> None:
    amounts = {Month(2026, 1): 100, Month(2026, 2): 50, Month(2026, 3): 0, Month(2026, 4): 200}
    assert [length for _, length in bars(month_chart(amounts, ""))] == [24, 12, 0, 48]


def test_a_loss_hangs_below_the_line_on_the_same_scale() -> None:
    assert [length for _, length in bars(month_chart({Month(2026, 1): 300, Month(2026, 2): -100}, ""))] == [36, -12]


def test_however_small_an_amount_is_it_can_be_seen() -> None:
    assert [length for _, length in bars(month_chart({Month(2026, 1): 10**12, Month(2026, 2): -1}, ""))] == [47, -1]


def test_a_month_that_is_missing_leaves_its_place_empty() -> None:
    assert [place for place, _ in bars(month_chart({Month(2025, 12): 1, Month(2026, 2): 1}, ""))] == [10, 50]


def test_a_lone_month_has_room_for_its_name() -> None:
    width = re.search(r"width='(\d+)' height", unquote(month_chart({Month(2026, 1): 1}, "")))
    assert width is not None
    assert int(width[1]) >= 45, "seven characters at a font size of eleven"


def test_the_longest_picture_is_still_shown_in_place() -> None:
    years = months_between(Month(2020, 1), Month(2026, 12))
    amounts = {month: (-1) ** month.number * 10**15 * month.number for month in years}
    markdown = month_chart(amounts, "-999,999,999,999,999.99")
    assert len(bars(markdown)) == 24
    assert len(markdown) < SHOWN_IN_PLACE
