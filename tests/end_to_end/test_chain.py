"""The whole chain in one back office: a backfill over it, from the request that the lineage's page makes to the
provider's books; and the guide for analysts, every step of which is walked in the real pages, in its order.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import pytest
from sqlalchemy import text

from tests.end_to_end.browser import browsing, installed
from tests.end_to_end.chain import ChainOffice, checks
from tests.end_to_end.conftest import CHAINED
from tests.end_to_end.guide import GUIDE, STEPS, Walk, commands

pytestmark = pytest.mark.timeout(900)


def test_every_month_is_settled_in_a_run_of_its_own_and_all_are_closed_in_order(
    chain_office: ChainOffice, capsys: pytest.CaptureFixture[str]
) -> None:
    done = chain_office.backfill
    assert done.status == "COMPLETED_SUCCESS"
    assert [run.month for run in done.settled] == CHAINED
    assert all(earlier.ended <= later.started for earlier, later in pairwise(done.settled))
    assert {run.status for run in [*done.settled, *done.portions]} == {"SUCCESS"}
    with chain_office.office.engine.connect() as connection:
        closed = connection.execute(
            text("SELECT to_char(month, 'YYYY-MM') FROM settlement_period WHERE state = 'CLOSED' ORDER BY closed_at")
        ).scalars()
        assert list(closed)[: len(CHAINED)] == CHAINED
    with capsys.disabled():
        sys.stdout.write(f"\nA backfill of the whole chain: {done}.\n")


def test_every_month_is_paid_and_stated_and_shows_it(chain_office: ChainOffice) -> None:
    for month in CHAINED:
        for asset in ("closed_books", "payouts", "settlement_statements"):
            assert month in str(chain_office.office.metadata(month, asset)["summary"]), asset
        folder = chain_office.office.home / "statements" / month
        assert (folder / "statements.csv").is_file()
        assert (folder / "statements.parquet").is_file()


def test_all_checks_of_the_chain_are_green(chain_office: ChainOffice) -> None:
    judged = checks(chain_office.office)
    assert len(judged) >= 9
    assert [name for name, passed in judged.items() if not passed] == []


def test_each_heading_of_the_guide_is_a_step_of_the_walk() -> None:
    # The last section describes what the test of the chain shows.
    assert list(commands(GUIDE.read_text("utf-8"))) == [*STEPS, "One backfill over everything"]


def test_each_picture_of_the_guide_is_there() -> None:
    text = GUIDE.read_text("utf-8")
    images = [part.split(")")[0] for part in text.split("](images/")[1:]]
    assert images
    assert [image for image in images if not (GUIDE.parent / "images" / image).is_file()] == []


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
