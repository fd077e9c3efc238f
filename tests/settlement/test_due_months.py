"""Which months are due to be settled."""

from __future__ import annotations

from datetime import date

from sqlalchemy import Engine

from tests.support.rows import add_movement, add_organization, instant
from tests.support.settled import MARCH, begin_and_plan, close_month, settle
from ticketflow_orch.months import Month
from ticketflow_orch.settlement.due import due_months


def test_months_are_due_from_the_first_movement_on_with_gaps_and_without_the_settled(engine: Engine) -> None:
    def due(now: str = "2026-06-15T12:00") -> list[str]:
        with engine.connect() as connection:
            return [str(month) for month in due_months(connection, instant(now), Month(2025, 1))]

    assert due() == []
    organization = add_organization(engine, joined_on=date(2020, 1, 1))
    assert due() == []
    add_movement(engine, organization, 100, "2026-01-31T22:59:59.999999")
    add_movement(engine, organization, 100, "2026-04-10T10:00")
    assert due() == ["2026-01", "2026-02", "2026-03", "2026-04", "2026-05"]
    for month in (Month(2026, 1), MARCH):
        settle(engine, month)
    close_month(engine, Month(2026, 1))
    assert due() == ["2026-02", "2026-04", "2026-05"]
    assert due(now="2026-04-30T21:59:59.999999") == ["2026-02"]
    assert due(now="2026-04-30T22:00") == ["2026-02", "2026-04"]
    # Before the first closed month nothing is posted any more: it is adjusted in the first that is not.
    add_movement(engine, organization, 100, "2025-12-31T22:59:59.999999")
    assert due() == ["2026-02", "2026-04", "2026-05"]
    # Nobody waits for a zone that nobody knows.
    add_organization(engine, timezone="Mars/Olympus_Mons")
    assert due() == ["2026-02", "2026-04", "2026-05"]


def test_a_month_whose_pass_was_left_running_is_due_whatever_its_state(engine: Engine) -> None:
    add_movement(engine, add_organization(engine), 100, "2026-03-10T10:00")
    settle(engine)
    begin_and_plan(engine)
    with engine.connect() as connection:
        assert MARCH in due_months(connection, instant("2026-06-15T12:00"), Month(2025, 1))
    settle(engine)
    with engine.connect() as connection:
        assert MARCH not in due_months(connection, instant("2026-06-15T12:00"), Month(2025, 1))


def test_months_from_one_that_was_settled_by_mistake_before_the_first_movement_are_due(engine: Engine) -> None:
    add_movement(engine, add_organization(engine), 100, "2026-03-10T10:00")
    settle(engine, Month(2025, 12))
    with engine.connect() as connection:
        due = due_months(connection, instant("2026-04-15T12:00"), Month(2025, 1))
    assert [str(month) for month in due] == ["2026-01", "2026-02", "2026-03"]
