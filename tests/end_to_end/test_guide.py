"""The guide for analysts keeps what it promises: every step of it is walked in the real pages, in its order."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.browser import browsing, installed
from tests.end_to_end.chain import ChainOffice
from tests.end_to_end.guide import GUIDE, STEPS, Walk, commands


def test_each_heading_of_the_guide_is_a_step_of_the_walk() -> None:
    # The last section describes what the test of the chain shows.
    assert list(commands(GUIDE.read_text("utf-8"))) == [*STEPS, "One backfill over everything"]


def test_each_picture_of_the_guide_is_there() -> None:
    text = GUIDE.read_text("utf-8")
    images = [part.split(")")[0] for part in text.split("](images/")[1:]]
    assert images
    assert [image for image in images if not (GUIDE.parent / "images" / image).is_file()] == []


@pytest.mark.timeout(900)
def test_the_guide_is_walked(chain_office: ChainOffice) -> None:
    chromium = installed()
    if chromium is None:
        pytest.skip("there is no Chromium on this machine")
    promised = [command for section in commands(GUIDE.read_text("utf-8")).values() for command in section]
    with browsing(chromium, chain_office.office.address) as page:
        walk = Walk(chain_office.office, page)
        for name, step in STEPS.items():
            try:
                step(walk)
            except Exception as error:
                error.add_note(f"It was the step {name!r} of {Path(*GUIDE.parts[-2:])}; the page said:")
                error.add_note(page.locator("body").inner_text())
                raise
    assert walk.ran == promised
    assert chain_office.provider.paid == chain_office.confirmed()
