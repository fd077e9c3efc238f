"""The application writes movements all the while that a month is settled, again and again."""

from __future__ import annotations

import itertools
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest
from sqlalchemy import Engine

from tests.chaos.books import read_books
from tests.oracle import Business, Movement, amounts, posted, record, without_zeros
from tests.rows import add_organization, instant
from tests.test_settlement import MARCH, settle

SECONDS = float(os.environ.get("CHAOS_SECONDS", "3"))
SEED = int(os.environ.get("CHAOS_SEED", Random().randrange(10**6)))
WRITERS = 3


@pytest.mark.parametrize("seed", [SEED])
def test_each_pass_sees_all_that_was_recorded_before_its_cutoff_and_none_is_lost(engine: Engine, seed: int) -> None:
    zones = {add_organization(engine, id=10_000 + number): "Europe/Madrid" for number in range(10)}
    over = threading.Event()

    def write(number: int) -> list[Movement]:
        random = Random(seed + number)
        business = Business(
            random, list(zones), since=instant("2026-02-27T00:00"), until=instant("2026-04-02T00:00"),
            ids=itertools.count(10**6 * (number + 1)),
        )  # fmt: skip
        written: list[Movement] = []
        while not over.is_set():
            batch = business.movements(random.choice([1, 1, 5, 200]))
            record(engine, batch)
            written += batch
        return written

    passes = 0
    with ThreadPoolExecutor(WRITERS) as threads:
        writers = [threads.submit(write, number) for number in range(WRITERS)]
        try:
            until = time.monotonic() + SECONDS
            while time.monotonic() < until:
                settle(engine, workers=1)
                passes += 1
                assert read_books(engine).dishonest == 0, f"CHAOS_SEED={seed}"
        finally:
            over.set()
    movements = [movement for writer in writers for movement in writer.result()]
    assert passes > 1
    settle(engine)
    expected = {key: sums for key, sums in amounts(movements, zones).items() if key[1] == str(MARCH)}
    about_them = {key: sums for key, sums in posted(engine).items() if key[0] in zones}
    assert without_zeros(about_them) == without_zeros(expected), f"CHAOS_SEED={seed}"
