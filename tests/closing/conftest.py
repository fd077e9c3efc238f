"""What the tests of closing share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date, timedelta
from pathlib import Path

import dagster as dg
import pytest
from sqlalchemy import Engine

from tests.support.unattended import Schedules
from ticketflow_orch.statements.storage import Place


@pytest.fixture
def unattended(engine: Engine, tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Lets nothing but the schedules act, on the days from `first` on."""
    with dg.DagsterInstance.ephemeral() as instance:
        schedules = Schedules(engine, instance, Place.at(str(tmp_path / "statements")), print)

        def run(first: str, days: int = 2) -> None:
            for number in range(days):
                schedules.day(date.fromisoformat(first) + timedelta(days=number))

        yield run
