"""All that takes part in paying is killed, again and again: by the provider's own books each is paid exactly once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from random import Random

import pytest
from sqlalchemy import Engine
from sqlalchemy.engine import URL

from tests.chaos.process import PATIENCE
from tests.chaos.relays import SOON, Relay
from tests.support.books import FEBRUARY, MARCH, settle_and_close
from tests.support.payable import request, request_and_die, rows
from tests.support.payments import configuration, delivery, pay, states, under_way
from tests.support.provider import Provider

KILLS = int(os.environ.get("CHAOS_KILLS", "3"))
SEED = int(os.environ["CHAOS_SEED"])
# It forgets a key two seconds after it acted, and the same key would pay again.
FORGETS_AFTER, REMEMBERS = 2.0, 1
BAD_DAY = {"lose": 0.1, "break_off": 0.05, "fail": 0.1, "drop": 0.1, "busy": 0.1, "slow": 0.1, "pause": 0.7}


@pytest.fixture
def provider(start_provider: Callable[..., Provider]) -> Provider:
    """A provider on a bad day."""
    provider = start_provider(forget_after=FORGETS_AFTER)
    provider.behave(**BAD_DAY)
    return provider


@pytest.fixture
def start_relay(url: URL) -> Iterator[Callable[[Path], Relay]]:
    started: list[Relay] = []

    def start(path: Path) -> Relay:
        started.append(Relay(url, path))
        return started[-1]

    yield start
    for relay in started:
        relay.kill()


@pytest.fixture
def payable(engine: Engine) -> list[tuple[str, str, int]]:
    """What March owes, as the provider's books must say it in the end; all of it has been requested."""
    settle_and_close(engine, FEBRUARY, MARCH)
    # The one that requests is killed as well.
    request_and_die(engine, after_chunks=2, chunk_size=20)
    request(engine, chunk_size=20)
    owed = rows(
        engine,
        """
        SELECT external_ref, balance.currency, payable
        FROM organization_balance AS balance JOIN organization ON organization.id = organization_id
        WHERE payable > 0 AND month = '2026-03-01'
        """,
    )
    return sorted(owed)


def settled(engine: Engine) -> bool:
    """Whether every payout is confirmed, and each under its own event."""
    return rows(
        engine,
        """
        SELECT count(*) FROM payout LEFT JOIN outbox_event ON aggregate_id = CAST(public_id AS text)
        WHERE payout.state <> 'CONFIRMED' OR outbox_event.state IS DISTINCT FROM 'DELIVERED'
        """,
    ) == [(0,)]


def test_a_relay_that_is_killed_at_any_instant_pays_each_exactly_once(
    engine: Engine,
    payable: list[tuple[str, str, int]],
    provider: Provider,
    start_relay: Callable[[Path], Relay],
    tmp_path: Path,
) -> None:
    random = Random(SEED)
    to = configuration(provider, tmp_path, remembers=REMEMBERS)
    statuses = []
    while len(statuses) < KILLS and under_way(engine):
        relay = start_relay(to)
        relay.wait_until_ready()
        relay.go()
        statuses.append(relay.kill_after(random.uniform(0.05, 0.5)))
    assert -signal.SIGKILL in statuses
    pay(engine, delivery(to), PATIENCE, SOON)
    assert provider.paid == payable, f"CHAOS_SEED={SEED} CHAOS_KILLS={KILLS}, which ended with {statuses}"
    assert settled(engine), states(engine)


def test_a_provider_that_is_killed_at_any_instant_pays_each_exactly_once(
    engine: Engine, payable: list[tuple[str, str, int]], provider: Provider, tmp_path: Path
) -> None:
    random = Random(SEED)
    to = configuration(provider, tmp_path, remembers=REMEMBERS)
    with ThreadPoolExecutor(1) as thread:
        relay = thread.submit(pay, engine, delivery(to), PATIENCE, SOON)
        killed = 0
        # On a quick machine all may be paid before the last of the kills.
        while killed < KILLS and not wait([relay], random.uniform(0.05, 0.4)).done:
            provider.restart()
            killed += 1
        relay.result(PATIENCE)
    assert killed > 0
    assert provider.paid == payable, f"CHAOS_SEED={SEED} CHAOS_KILLS={KILLS}"
    assert settled(engine), states(engine)


def test_several_relays_at_once_pay_each_exactly_once(
    engine: Engine, payable: list[tuple[str, str, int]], provider: Provider, tmp_path: Path
) -> None:
    to = configuration(provider, tmp_path, remembers=REMEMBERS)
    with ThreadPoolExecutor(3) as threads:
        for relay in [threads.submit(pay, engine, delivery(to), PATIENCE, SOON) for _ in range(3)]:
            relay.result(PATIENCE)
    assert provider.paid == payable
    assert settled(engine), states(engine)
