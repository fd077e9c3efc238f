"""No dead ends: from whatever a history leaves behind, the schedules alone come to the end, or health says why not."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from random import Random

import dagster as dg
import pytest
from sqlalchemy import Engine
from sqlalchemy.engine import URL

from tests.chaos.endings import Ending
from tests.chaos.histories import FIRST, Platform
from tests.conftest import fresh_database
from tests.support.installed import decide
from tests.support.payable import pay_from
from tests.support.rows import instant
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.months import Month
from ticketflow_orch.settings import settings

HISTORIES = int(os.environ.get("LIVENESS_HISTORIES", "6"))
STEPS = int(os.environ.get("LIVENESS_STEPS", "10"))
SEED = int(os.environ["CHAOS_SEED"])


@pytest.fixture(scope="session")
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture
def url(server: EmbeddedServer) -> Iterator[URL]:
    """The URL of a database in which nothing has happened yet."""
    with fresh_database(server) as url:
        yield url


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Settings of a history, forgotten afterwards."""
    monkeypatch.setenv("TICKETFLOW_FIRST_MONTH", str(FIRST))
    yield monkeypatch
    monkeypatch.undo()
    settings.cache_clear()


# What a killed process leaves open is closed by nobody.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("seed", range(SEED, SEED + HISTORIES))
def test_the_schedules_come_to_the_end_whatever_happened_or_health_says_why_not(
    engine: Engine, tmp_path: Path, instance: dg.DagsterInstance, configured: pytest.MonkeyPatch, seed: int
) -> None:
    random = Random(seed)
    decide(engine, first_month=FIRST)
    pay_from(engine, random.choice([None, Month(2025, 10), Month(2025, 11)]))
    configured.setenv("TICKETFLOW_PARKED_LIMIT", random.choice(["100", "100", "100", "0"]))
    settings.cache_clear()
    platform = Platform(engine, seed, tmp_path, instance)
    platform.live(instant(f"2026-01-{random.randint(5, 31):02}T12:00"), STEPS)
    ending, followed = Ending(platform), 0
    for month in (2, 3, 4, 5):
        platform.rest(date(2026, month, 2))
        obstacles = ending.remove_obstacles()
        if not obstacles:
            break
        followed += obstacles
        platform.rest(date(2026, month, 12))
    assert ending.unfinished() == [], ending.history()
    assert ending.differences() == [], ending.history()
    sys.stdout.write(f"seed {seed}: {followed} named obstacles removed, 0 stuck without one, 0 differences\n")
