"""The audit, invariant by invariant: nothing that is wrong about money or its effects leaves it green."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Engine

from tests.audited import World, broken, whole_chain


@pytest.fixture
def world(engine: Engine, tmp_path: Path) -> World:
    return whole_chain(engine, tmp_path)


@pytest.mark.every_server
def test_nothing_is_wrong_after_late_data_parking_given_up_passes_refunds_and_returns(
    engine: Engine, world: World
) -> None:
    assert broken(engine) == {}
