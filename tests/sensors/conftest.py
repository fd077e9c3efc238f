"""An instance of Dagster for sensors to look at, in tests that make runs of their own."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg
import pytest

from tests.support.homes import dagster_instance


@pytest.fixture(scope="module")
def shared() -> Iterator[dg.DagsterInstance]:
    with dagster_instance() as instance:
        yield instance


@pytest.fixture
def instance(shared: dg.DagsterInstance) -> Iterator[dg.DagsterInstance]:
    """Shared, since it is dear; without runs."""
    yield shared
    for run in shared.get_runs():
        shared.delete_run(run.run_id)
