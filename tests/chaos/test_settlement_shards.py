"""Further runs help one that leads a month, each a process: killed, late or twice, they change nothing in the books."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.engine import URL

from tests.chaos.books import Books, read_books
from tests.chaos.places import CHUNK_DONE, POST, Place
from tests.chaos.process import PATIENCE
from tests.chaos.settlers import Helper, Settler
from tests.support.sessions import becomes
from tests.support.settled import MARCH
from ticketflow_orch.settlement.shards import open_work

# 48 chunks for the leader alone would take two seconds: enough for helpers that were started before.
CHUNK_SIZE, PAUSE = 5, 0.05


@pytest.fixture
def start_helper(url: URL) -> Iterator[Callable[..., Helper]]:
    """Starts processes that help; whatever is left of them in the end is killed."""
    started: list[Helper] = []

    def start(**task: object) -> Helper:
        started.append(Helper(url, **task))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for helper in started:
        helper.kill()


def lead(engine: Engine, start_settler: Callable[..., Settler], helpers: Sequence[Helper]) -> Settler:
    """One that leads the month, with `helpers` who set about it as soon as its pass is planned."""
    leader = start_settler(workers=1, chunk_size=CHUNK_SIZE, chunk_pause=PAUSE)
    for process in (leader, *helpers):
        process.wait_until_ready()
    leader.go()
    assert becomes(lambda: is_planned(engine), patience=PATIENCE)
    for helper in helpers:
        helper.go()
    return leader


def is_planned(engine: Engine) -> bool:
    with engine.connect() as connection:
        return open_work(connection, MARCH) is not None


def chunks_by_run(engine: Engine) -> dict[str, int]:
    with engine.connect() as connection:
        found = connection.execute(
            text("SELECT run_id, count(*) AS chunks FROM settlement_chunk WHERE pass = 1 GROUP BY run_id")
        )
        return {row.run_id: row.chunks for row in found}


@pytest.mark.every_server
@pytest.mark.parametrize("crew", [[2, 2], [1, 1, 1, 1]], ids=["two helpers", "four helpers"])
def test_helpers_share_a_month_and_end_and_the_leader_ends_it(
    engine: Engine,
    clean: Books,
    start_settler: Callable[..., Settler],
    start_helper: Callable[..., Helper],
    crew: list[int],
) -> None:
    helpers = [start_helper(workers=workers, pause=PAUSE) for workers in crew]
    leader = lead(engine, start_settler, helpers)
    done = [helper.ended() for helper in helpers]
    led = leader.ended()
    assert (led.status, led.state) == (0, "SETTLED"), led
    assert [status for status, _, _ in done] == [0] * len(crew), done
    assert read_books(engine) == clean
    by_run = chunks_by_run(engine)
    assert sum(chunks for _, chunks, _ in done) + by_run["run"] == sum(by_run.values())
    assert len(by_run) == 1 + len(crew), "each of them did something"


@pytest.mark.parametrize(
    "place",
    [Place("after", POST, 3), Place("before commit", CHUNK_DONE, 3), Place("after commit", CHUNK_DONE, 3)],
    ids=str,
)
def test_a_helper_that_is_killed_gives_its_chunk_back(
    engine: Engine,
    clean: Books,
    start_settler: Callable[..., Settler],
    start_helper: Callable[..., Helper],
    place: Place,
) -> None:
    killed, other = start_helper(place=place, pause=PAUSE), start_helper(pause=PAUSE)
    leader = lead(engine, start_settler, [killed, other])
    assert killed.ended()[0] == -signal.SIGKILL
    assert other.ended()[0] == 0
    assert (led := leader.ended()).state == "SETTLED", led
    assert read_books(engine) == clean


def test_a_leader_that_is_killed_is_followed_by_one_that_finds_what_its_helper_did(
    engine: Engine, clean: Books, start_settler: Callable[..., Settler], start_helper: Callable[..., Helper]
) -> None:
    helper = start_helper()
    leader = lead(engine, start_settler, [helper])
    leader.kill()
    assert helper.ended()[0] == 0
    with engine.connect() as connection:
        work = open_work(connection, MARCH)
    assert work is not None, "nobody but a leader ends the month"
    again = start_settler(chunk_size=CHUNK_SIZE).run()
    assert (again.state, again.joined) == ("SETTLED", True)
    assert read_books(engine) == clean


def test_who_comes_when_the_month_is_settled_changes_nothing(
    engine: Engine, clean: Books, start_settler: Callable[..., Settler], start_helper: Callable[..., Helper]
) -> None:
    assert start_settler(chunk_size=CHUNK_SIZE).run().state == "SETTLED"
    late = start_helper()
    late.go()
    assert late.ended() == (0, 0, "Nothing was done. Pass 1 of 2026-03 has ended.")
    assert read_books(engine) == clean
