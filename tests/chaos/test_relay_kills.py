"""Relays that are killed and frozen while a receiver misbehaves: every event is applied once, in order, none is lost.

`CHAOS_EVENTS` and `CHAOS_KILLS` scale the attack, `CHAOS_SEED` repeats one.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.engine import URL

from tests.chaos.relay_workers import LEASE, RelayWorker
from tests.conftest import fresh_database
from tests.outbox.relay.world import add, add_many
from tests.support.sessions import becomes
from tests.support.sinks.http_receiver import ReceiverProcess
from ticketflow_orch.local.postgres import EmbeddedServer

EVENTS = int(os.environ.get("CHAOS_EVENTS", "600"))
KILLS = int(os.environ.get("CHAOS_KILLS", "6"))
SEED = int(os.environ["CHAOS_SEED"])
EACH = EVENTS // KILLS
PER_AGGREGATE = 10
PATIENCE = 60 + EVENTS / 20
MISBEHAVIOUR = {
    "slow": 0.1,
    "500 after applying": 0.05,
    "apply then drop": 0.05,
    "drop": 0.05,
    "502": 0.05,
    "silence": 0.005,
}


@pytest.fixture
def url(server: EmbeddedServer) -> Iterator[URL]:
    """The URL of a fresh, migrated database."""
    with fresh_database(server) as url:
        yield url


@pytest.fixture
def receiver() -> Iterator[ReceiverProcess]:
    with ReceiverProcess() as receiver:
        yield receiver


@pytest.fixture
def start(url: URL, receiver: ReceiverProcess) -> Iterator[Callable[[], RelayWorker]]:
    """Starts relays; whatever is left of them in the end is killed."""
    started: list[RelayWorker] = []

    def start() -> RelayWorker:
        started.append(RelayWorker(url, receiver.url))
        started[-1].go()
        started[-1].wait_until_ready()
        return started[-1]

    yield start
    for relay in started:
        relay.kill()


def left(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT count(*) FROM outbox_event WHERE ended_at IS NULL")).scalar_one())


def out_of_order(engine: Engine, applied: list[str]) -> list[str]:
    """The events whose first application came after that of a later one of their aggregate."""
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT CAST(event_id AS text), aggregate_id, id FROM outbox_event"))
        events = {event_id: (aggregate, number) for event_id, aggregate, number in rows}
    last: dict[str, int] = {}
    wrong = []
    for event_id in applied:
        aggregate, number = events[event_id]
        if number < last.get(aggregate, 0):
            wrong.append(event_id)
        last[aggregate] = max(number, last.get(aggregate, 0))
    return wrong


@pytest.mark.timeout(int(PATIENCE) * 3)
def test_two_relays_killed_at_random_lose_nothing_and_keep_the_order(
    engine: Engine, receiver: ReceiverProcess, start: Callable[[], RelayWorker]
) -> None:
    print(f"CHAOS_SEED={SEED}")  # noqa: T201 - shown where the test fails
    chance = random.Random(SEED)
    receiver.script(mix=[MISBEHAVIOUR, SEED])
    relays = [start(), start()]
    interrupted = 0
    # Some more for each kill, so that there is something to interrupt however quick the machine.
    for number in range(KILLS):
        threshold = len(receiver.record()["applied"]) + chance.randrange(EACH * 2 // 3)
        add_many(engine, EACH, aggregates=EACH // PER_AGGREGATE, kind=f"Round{number}-")
        assert becomes(lambda so_far=threshold: len(receiver.record()["applied"]) >= so_far, patience=PATIENCE)  # type: ignore[misc]
        interrupted += left(engine) > 0
        which = chance.randrange(2)
        relays[which].kill()
        relays[which] = start()
    assert interrupted > KILLS / 2
    assert becomes(lambda: left(engine) == 0, patience=PATIENCE)
    applied = list(receiver.record()["applied"])
    assert len(applied) == len(set(applied)) == EACH * KILLS
    assert out_of_order(engine, applied) == []
    assert not any(relay.has_ended() for relay in relays)
    with engine.connect() as connection:
        ends = connection.execute(text("SELECT DISTINCT state FROM outbox_event")).scalars().all()
    assert ends == ["DELIVERED"]


def test_a_relay_that_sleeps_past_its_lease_changes_nothing_when_it_wakes(
    engine: Engine, receiver: ReceiverProcess, start: Callable[[], RelayWorker]
) -> None:
    # Its requests are out when it falls asleep; the receiver refuses them, the next relay's it takes.
    receiver.script(always=["silence"])
    for number in range(8):
        add(engine, f"{number}")
    zombie = start()
    assert becomes(lambda: receiver.record()["played"].get("silence", 0) >= 4)
    zombie.freeze()
    receiver.script(always=["ok"])
    time.sleep(LEASE)
    other = start()
    assert becomes(lambda: left(engine) == 0, patience=30)
    other.kill()
    before = _rows(engine)
    zombie.thaw()
    time.sleep(LEASE)
    assert not zombie.has_ended()
    assert _rows(engine) == before
    assert len(receiver.record()["applied"]) == 8


def _rows(engine: Engine) -> list[tuple[object, ...]]:
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text("SELECT * FROM outbox_event ORDER BY id"))]
