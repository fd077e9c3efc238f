"""A process is frozen in the middle of its work and goes on when others have finished it: nothing changes."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from sqlalchemy import Engine

from tests.chaos.books import CHUNK_SIZE, Books, read_books
from tests.chaos.places import BEGIN, CHUNK_DONE, FINISH, PLAN, POST, TAKE_CHUNK, Place
from tests.chaos.settlers import Settler
from tests.support.settled import settle

# Frozen there it holds a transaction that others wait for, until the server ends it.
INSIDE = {
    "as it begins the pass": Place("before commit", BEGIN),
    "as it plans the pass": Place("before commit", PLAN),
    "with a chunk's entries posted": Place("after", POST, 3),
    "before a chunk's commit": Place("before commit", CHUNK_DONE, 3),
    "as it finishes the pass": Place("before commit", FINISH),
}
OUTSIDE = {
    "with its cutoff taken": Place("after commit", BEGIN),
    "with its plan committed": Place("after commit", PLAN),
    "between chunks": Place("before", TAKE_CHUNK, 4),
    "before it finishes the pass": Place("before", FINISH),
}


@pytest.mark.parametrize("place", INSIDE.values(), ids=INSIDE)
def test_a_process_frozen_inside_a_transaction_loses_it_and_can_do_no_harm(
    engine: Engine, clean: Books, start_settler: Callable[..., Settler], place: Place
) -> None:
    frozen = start_settler(place=place, signal=signal.SIGSTOP, idle_timeout=3)
    frozen.go()
    frozen.wait_until_frozen()
    settle(engine, chunk_size=CHUNK_SIZE)
    assert read_books(engine) == clean
    frozen.thaw()
    ended = frozen.ended()
    assert ended.status == 1
    assert "idle-in-transaction timeout" in ended.complaint
    assert read_books(engine) == clean


@pytest.mark.parametrize("place", OUTSIDE.values(), ids=OUTSIDE)
def test_a_process_frozen_between_transactions_finds_nothing_left_to_do(
    engine: Engine, clean: Books, start_settler: Callable[..., Settler], place: Place
) -> None:
    frozen = start_settler(place=place, signal=signal.SIGSTOP)
    frozen.go()
    frozen.wait_until_frozen()
    settle(engine, chunk_size=CHUNK_SIZE)
    assert read_books(engine) == clean
    frozen.thaw()
    ended = frozen.ended()
    assert (ended.status, ended.state) == (0, "SETTLED"), ended.complaint
    assert read_books(engine) == clean


@pytest.mark.every_server
def test_one_frozen_inside_a_chunk_and_one_between_chunks_are_outlived_by_a_third(
    engine: Engine, clean: Books, start_settler: Callable[..., Settler]
) -> None:
    inside = start_settler(place=INSIDE["with a chunk's entries posted"], signal=signal.SIGSTOP, idle_timeout=3)
    inside.go()
    inside.wait_until_frozen()
    between = start_settler(place=OUTSIDE["between chunks"], signal=signal.SIGSTOP)
    between.go()
    between.wait_until_frozen()
    assert settle(engine).joined
    for settler in (inside, between):
        settler.thaw()
    assert [inside.ended().status, between.ended().status] == [1, 0]
    assert read_books(engine) == clean
    assert settle(engine).changed_nothing
