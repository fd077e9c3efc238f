"""What stands in the way, in sentences."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Engine

from tests.support.books import FIRST
from ticketflow_orch.monitoring.obstacles import read_obstacles


def said(engine: Engine, now: datetime | None = None) -> list[str]:
    with engine.connect() as connection:
        return [f"{one.what}; {one.out}" for one in read_obstacles(connection, FIRST, now)]
