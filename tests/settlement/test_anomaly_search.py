"""The search for movements that cannot all be right: it goes on where it was killed, and reads only what is new."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, event

from tests.support.anomalous import found, won_twice
from tests.support.books import APRIL
from tests.support.payable import close_owing, request
from tests.support.plans import Node, add_movements, plan_of, scans_of
from tests.support.settled import settle
from ticketflow_orch.settlement.anomalies import noted, search


def test_a_search_that_was_killed_goes_on_and_notes_nothing_twice(engine: Engine, hall: int) -> None:
    for _ in range(4):
        won_twice(engine, hall)
    settle(engine)

    def die(*arguments: object) -> None:
        if "UPDATE anomaly_search" in str(arguments[2]) and len(chunks) == 2:
            raise KeyboardInterrupt
        chunks.extend([1] if "UPDATE anomaly_search" in str(arguments[2]) else [])

    chunks: list[int] = []
    event.listen(engine, "before_cursor_execute", die)
    with pytest.raises(KeyboardInterrupt):
        search(engine, chunk_size=3)
    event.remove(engine, "before_cursor_execute", die)
    assert search(engine, chunk_size=3) == 10
    assert len(found(engine)) == 4
    assert search(engine) == 0


def test_a_search_reads_what_settlements_have_read_and_no_more(engine: Engine, hall: int) -> None:
    won_twice(engine, hall)
    assert search(engine) == 0
    settle(engine)
    won_twice(engine, hall)
    assert search(engine) == 4
    assert len(found(engine)) == 2
    with engine.connect() as connection:
        assert noted(connection).count == 1


@pytest.mark.every_server
def test_of_two_years_a_request_reads_only_what_came_since_the_last_search_and_what_looks_wrong(
    engine: Engine,
) -> None:
    add_movements(engine, months=24)
    settle(engine)
    assert search(engine) > 40_000
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("VACUUM (ANALYZE)")
    won_twice(engine, 7)
    settle(engine)
    close_owing(engine, dict.fromkeys(range(1, 801), 20_000), APRIL)
    plans: list[tuple[str, Node]] = []

    @event.listens_for(engine, "before_cursor_execute")
    def note_plan(_connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if "money_movement" in statement:
            plans.append((statement, plan_of(cursor, statement, parameters)))

    assert request(engine, APRIL).anomalous == 1
    event.remove(engine, "before_cursor_execute", note_plan)
    assert len(plans) >= 3
    for statement, plan in plans:
        for scan in scans_of(plan, "money_movement"):
            assert scan["Actual Loops"] * (scan["Actual Rows"] + scan.get("Rows Removed by Filter", 0)) <= 20, statement
