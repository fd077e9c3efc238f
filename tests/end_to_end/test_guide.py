"""The guide for analysts: every step of it is walked on the demo, in the real pages and in its order."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.browser import browsing, installed
from tests.end_to_end.guide import GUIDE, STEPS, Walk, commands, demo_office
from ticketflow_orch.cli.demo_output import GUIDE_MONTH
from ticketflow_orch.months import Month

pytestmark = pytest.mark.timeout(900)
ORGANIZATIONS, BEGINNING = 110, Month(2025, 1)


def test_each_heading_of_the_guide_is_a_step_of_the_walk() -> None:
    # The last section describes what the test of the chain shows.
    assert list(commands(GUIDE.read_text("utf-8"))) == [*STEPS, "One backfill over everything"]


def test_each_picture_of_the_guide_is_there() -> None:
    text = GUIDE.read_text("utf-8")
    images = [part.split(")")[0] for part in text.split("](images/")[1:]]
    assert images
    assert [image for image in images if not (GUIDE.parent / "images" / image).is_file()] == []


def test_the_guide_is_walked(scratch: Path) -> None:
    chromium = installed()
    if chromium is None:
        pytest.skip("there is no Chromium on this machine")
    promised = [command for section in commands(GUIDE.read_text("utf-8")).values() for command in section]
    with demo_office(scratch / "guide", ORGANIZATIONS, BEGINNING) as office, browsing(chromium, office.address) as page:
        walk = Walk(office, page)
        for name, step in STEPS.items():
            try:
                step(walk)
            except Exception as error:
                error.add_note(f"It was the step {name!r} of {Path(*GUIDE.parts[-2:])}; the page said:")
                error.add_note(page.locator("body").inner_text())
                raise
        walk.office.wait_for(walk.all_is_paid, "the provider to have confirmed every payout")
    assert walk.ran == promised


def test_the_demo_translates_from_the_months_of_the_guide() -> None:
    assert f"--month {GUIDE_MONTH}" in GUIDE.read_text("utf-8")
