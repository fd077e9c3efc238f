"""The process that settles is killed, wherever and however often: settled again, the books are those of a clean run."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from random import Random

import pytest
from sqlalchemy import Engine

from tests.chaos.books import CHUNK_SIZE, Books, read_books
from tests.chaos.places import BEGIN, CHUNK_DONE, FINISH, PARK, PLAN, POST, SPLIT, TAKE_CHUNK, Place
from tests.chaos.settlers import Settler
from tests.support.settled import settle

PLACES = {
    "with its cutoff taken": Place("after commit", BEGIN),
    "with its plan written": Place("before commit", PLAN),
    "with its plan committed": Place("after commit", PLAN),
    "with a chunk's entries posted": Place("after", POST, 3),
    "before a chunk's commit": Place("before commit", CHUNK_DONE, 3),
    "after a chunk's commit": Place("after commit", CHUNK_DONE, 3),
    "between chunks": Place("before", TAKE_CHUNK, 4),
    "while it splits a chunk": Place("before commit", SPLIT, 2),
    "while it parks an organization": Place("before commit", PARK),
    "before the pass is done": Place("before commit", FINISH),
    "after the pass is done": Place("after commit", FINISH),
}
ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "1"))
KILLS = int(os.environ.get("CHAOS_KILLS", "6"))
SEED = int(os.environ["CHAOS_SEED"])


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_a_run_that_is_killed_costs_nothing_but_its_repeat(
    engine: Engine, clean: Books, start_settler: Callable[..., Settler], place: Place
) -> None:
    assert start_settler(place=place).run().status == -signal.SIGKILL
    settle(engine, chunk_size=CHUNK_SIZE)
    assert read_books(engine) == clean
    assert settle(engine).changed_nothing


@pytest.mark.parametrize("seed", range(SEED, SEED + ROUNDS))
def test_runs_that_are_killed_at_any_instant_get_there_in_the_end(
    engine: Engine, clean: Books, start_settler: Callable[..., Settler], seed: int
) -> None:
    random = Random(seed)
    statuses = []
    for _ in range(KILLS):
        settler = start_settler(
            workers=random.choice([1, 2, 3]), chunk_size=random.choice([1, 7, 20, 1000]), chunk_pause=0.005
        )
        settler.wait_until_ready()
        settler.go()
        statuses.append(settler.kill_after(random.uniform(0, 0.4)).status)
    assert set(statuses) <= {0, -signal.SIGKILL}
    settle(engine, chunk_size=CHUNK_SIZE)
    assert read_books(engine) == clean, f"CHAOS_SEED={seed} CHAOS_KILLS={KILLS}, which ended with {statuses}"
