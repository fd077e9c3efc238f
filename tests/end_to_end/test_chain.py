"""The whole chain in one back office: a backfill over it, from the request that the lineage's page makes to the
provider's books.
"""

from __future__ import annotations

import sys
from itertools import pairwise

import pytest
from sqlalchemy import text

from tests.end_to_end.chain import ChainOffice, checks
from tests.end_to_end.conftest import CHAINED

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


def test_the_provider_has_paid_what_is_confirmed_and_nothing_else(chain_office: ChainOffice) -> None:
    chain_office.office.wait_for(lambda: chain_office.provider.paid == chain_office.confirmed() != [], "the provider")
