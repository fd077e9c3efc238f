"""The whole chain in one back office: a backfill over it, from the request that the lineage's page makes to the
provider's books.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from sqlalchemy import text

from tests.end_to_end.chain import ChainOffice, backfill_chain, checks, confirmed, provider_office

CHAINED = ["2025-01", "2025-02", "2025-03"]

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def chain_office(scratch: Path) -> Iterator[ChainOffice]:
    """An office in which a backfill has brought three months of twenty organizations from sales to statements."""
    with provider_office(scratch / "chain", CHAINED, organizations=20) as (office, provider):
        yield ChainOffice(office, provider, backfill_chain(office, CHAINED))


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


def test_the_provider_has_paid_what_is_confirmed_and_nothing_else(chain_office: ChainOffice) -> None:
    chain_office.office.wait_for(
        lambda: chain_office.provider.paid == confirmed(chain_office.office.engine) != [], "the provider"
    )
