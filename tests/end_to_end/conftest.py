"""Two back offices, each for the tests of one file, and the first thing that ever happens in each: a backfill."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end import sales
from tests.end_to_end.back_office import Backfill, BackOffice, opened
from tests.end_to_end.chain import ChainOffice, backfill_chain, provider_office

BACKFILLED = [f"2024-{number:02d}" for number in range(2, 6)]
BAD_MONTH = "2024-04"
CHAINED = ["2025-01", "2025-02", "2025-03"]


@pytest.fixture(scope="module")
def fresh_office(scratch: Path) -> Iterator[BackOffice]:
    """A back office in which nothing has run yet. The schedule is off: its hour may come while the tests run."""
    home = scratch / "office"
    with opened(
        home,
        TICKETFLOW_FIRST_MONTH=sales.FIRST_MONTH,
        TICKETFLOW_FIXED_CLOCK=sales.NOW,
        TICKETFLOW_PARKED_LIMIT="0",
    ) as office:
        office.stop_schedule("settlement_schedule")
        sales.sell(office.engine)
        yield office


@pytest.fixture(scope="module")
def first_backfill(fresh_office: BackOffice) -> Backfill:
    """Four months, one of which holds amounts that no ledger entry can hold."""
    sales.flood(fresh_office.engine, BAD_MONTH)
    return fresh_office.backfill(BACKFILLED)


@pytest.fixture(scope="module")
def office(fresh_office: BackOffice, first_backfill: Backfill) -> BackOffice:
    """The back office for tests that need no fresh one, whatever order they run in."""
    return fresh_office


@pytest.fixture(scope="module")
def chain_office(scratch: Path) -> Iterator[ChainOffice]:
    """An office in which a backfill has settled, closed, paid and stated three months of twenty organizations."""
    with provider_office(scratch / "chain", CHAINED, organizations=20) as (office, provider):
        yield ChainOffice(office, provider, backfill_chain(office, CHAINED))
