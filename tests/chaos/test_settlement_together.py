"""Several runs settle one month at once, past any queue: they share the work, and each ends only when it is done."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import Engine, text

from tests.chaos.books import CHUNK_SIZE, Books, read_books
from tests.chaos.process import PATIENCE
from tests.chaos.settlers import Settler
from tests.support.sessions import becomes


@pytest.mark.every_server
@pytest.mark.parametrize(("processes", "workers"), [(2, 1), (4, 2)])
def test_runs_of_one_month_share_its_pass_and_end_when_it_is_settled(
    engine: Engine, clean: Books, start_settler: Callable[..., Settler], processes: int, workers: int
) -> None:
    settlers = [
        start_settler(workers=workers, chunk_size=CHUNK_SIZE // 2, chunk_pause=0.02 * processes)
        for _ in range(processes)
    ]
    for settler in settlers:
        settler.wait_until_ready()
    # A writer holds them up, once they have begun or joined the pass, until the last of them has.
    with engine.begin() as writer:
        writer.execute(text("LOCK TABLE money_movement IN ROW EXCLUSIVE MODE"))
        for settler in settlers:
            settler.go()
        assert becomes(lambda: waiting_for_writers(engine) == processes, patience=PATIENCE)
    runs = [settler.ended() for settler in settlers]
    assert [run.status for run in runs] == [0] * processes, runs
    assert {run.state for run in runs} == {"SETTLED"}
    assert sorted(run.joined is True for run in runs) == [False] + [True] * (processes - 1)
    assert read_books(engine) == clean
    assert processes_at_work(engine) > 1


def waiting_for_writers(engine: Engine) -> int:
    """How many processes do, as their last statement shows."""
    with engine.connect() as connection:
        return int(
            connection.execute(
                text("""
                    SELECT count(DISTINCT application_name) FROM pg_stat_activity
                    WHERE application_name LIKE 'settler%' AND datname = current_database()
                        AND query ~ 'pg_locks|SELECT planned_at IS NOT NULL'
                """)
            ).scalar_one()
        )


def processes_at_work(engine: Engine) -> int:
    """How many processes had a hand in the first pass, which posted everything.

    Who joined it had begun after its cutoff, and so looked again, with a pass that found nothing.
    """
    with engine.connect() as connection:
        again = text("SELECT coalesce(sum(rows_new + rows_adjusted), 0) FROM settlement_chunk WHERE pass > 1")
        assert connection.execute(again).scalar_one() == 0
        hands = text("SELECT worker FROM settlement_chunk WHERE pass = 1 AND worker IS NOT NULL")
        return len({worker.split("/")[1] for worker in connection.execute(hands).scalars()})
