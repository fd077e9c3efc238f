"""Months before the first closed one: what comes late for them is adjusted too, since nothing can follow them."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, text

from tests.support.books import FIRST, close
from tests.support.payable import rows
from tests.support.rows import add_movement, add_organization, add_void, instant
from tests.support.settled import MARCH, NOW, close_month, settle, tamper
from tests.support.sql_statements import execute, queries
from tests.support.statements import APRIL, FEBRUARY
from ticketflow_orch.closing.turn import months_to_close
from ticketflow_orch.months import Month
from ticketflow_orch.periods.state import last_closed
from ticketflow_orch.settlement.due import due_months, late_months, months_due_at


def origins(engine: Engine) -> list[tuple[str, str, int]]:
    """Month, origin month and captures of every adjustment."""
    with engine.connect() as connection:
        rows = connection.execute(
            text("""
                SELECT to_char(month, 'YYYY-MM'), to_char(origin_month, 'YYYY-MM'), captures FROM ledger_entry
                WHERE month <> origin_month ORDER BY 1, 2, 3
            """)
        )
        return [tuple(row) for row in rows]


def test_what_is_older_than_the_books_is_adjusted_in_the_first_month_that_is_not_closed(engine: Engine) -> None:
    organization = add_organization(engine)
    for month in (FEBRUARY, MARCH):
        settle(engine, month)
    close_month(engine, FEBRUARY)
    add_movement(engine, organization, 5, "2025-11-10T10:00")
    add_movement(engine, organization, 7, "2025-12-10T10:00")
    with engine.connect() as connection:
        assert last_closed(connection) == FEBRUARY
        assert [str(month) for month in due_months(connection, NOW, Month(2025, 1))][:2] == ["2026-04", "2026-05"]
        # Nobody missed the months before the books: they are never settled by themselves.
        at_tick = months_due_at(connection, NOW, Month(2025, 1))
        assert [str(month) for month in at_tick] == ["2026-02", "2026-03", "2026-04", "2026-05"]
    assert settle(engine, Month(2025, 11)).settlement is None
    assert settle(engine, APRIL).rows_adjusted == 0
    assert settle(engine).rows_adjusted == 2
    assert origins(engine) == [("2026-03", "2025-11", 5), ("2026-03", "2025-12", 7)]
    assert settle(engine).changed_nothing
    add_movement(engine, organization, 1, "2025-12-10T10:00")
    close_month(engine, MARCH)
    assert settle(engine, APRIL).rows_adjusted == 1
    assert origins(engine)[2:] == [("2026-04", "2025-12", 1)]
    assert settle(engine, APRIL).changed_nothing


def test_the_first_instant_of_the_books_is_each_zone_s_own(engine: Engine) -> None:
    tokyo, madrid = (add_organization(engine, timezone=zone) for zone in ("Asia/Tokyo", "Europe/Madrid"))
    settle(engine, FEBRUARY)
    close_month(engine, FEBRUARY)
    for organization in (tokyo, madrid):
        # January's last hours in Madrid, February's first in Tokyo.
        add_movement(engine, organization, 100, "2026-01-31T20:00")
    settle(engine)
    assert origins(engine) == [("2026-03", "2026-01", 100), ("2026-03", "2026-02", 100)]


def test_an_organization_parked_before_the_books_is_looked_at_until_it_is_well(engine: Engine) -> None:
    settle(engine, FEBRUARY)
    close_month(engine, FEBRUARY)
    organization = add_organization(engine)
    poison = [add_movement(engine, organization, 2**62, "2025-12-10T10:00") for _ in range(3)]
    for _ in range(2):
        assert [str(parked.month) for parked in settle(engine).parked] == ["2025-12"]
    for movement in poison[:2]:
        add_void(engine, movement)
    assert settle(engine).parked == ()
    assert origins(engine) == [("2026-03", "2025-12", 2**62)]


def test_a_closed_month_is_looked_at_from_the_last_look_on_though_nothing_came_late_then(engine: Engine) -> None:
    organization = add_organization(engine)
    for month in (FEBRUARY, MARCH):
        settle(engine, month)
    close_month(engine, FEBRUARY)
    assert settle(engine).changed_nothing
    # As it cannot be: recorded before the last look, and not seen by it. It stands for all that need not be read again.
    movement = add_movement(engine, organization, 100, "2026-02-10T10:00")
    tamper(engine, f"UPDATE settlement_period SET read_to = {movement + 1}")
    assert settle(engine).chunks == 0
    add_movement(engine, organization, 1, "2026-02-10T10:00")
    assert settle(engine).chunks == 1


def test_a_full_settlement_recomputes_what_is_older_than_the_books_too(engine: Engine) -> None:
    organization = add_organization(engine)
    # As it cannot be: about a month before the first that was closed, and taken for read.
    add_movement(engine, organization, 100, "2025-11-10T10:00")
    settle(engine, FEBRUARY)
    close_month(engine, FEBRUARY)
    assert settle(engine).rows_adjusted == 0
    assert settle(engine, full=True).rows_adjusted == 1
    assert origins(engine) == [("2026-03", "2025-11", 100)]


@pytest.mark.parametrize(
    ("zone", "at", "origin"),
    [("Asia/Tokyo", "2025-11-10T10:00", "2025-11"), ("America/New_York", "2026-02-01T03:00", "2026-01")],
)
@pytest.mark.parametrize("comes_late", [False, True])
def test_what_is_older_than_the_books_of_somebody_in_an_unknown_zone_is_settled_when_the_zone_is_known(
    engine: Engine, *, zone: str, at: str, origin: str, comes_late: bool
) -> None:
    seller, stray = add_organization(engine), add_organization(engine, timezone="Mars/Olympus_Mons")
    add_movement(engine, seller, 100, "2026-02-10T10:00")
    if not comes_late:
        add_movement(engine, stray, 7, at)
    unattended_months(engine, "2026-03-02T05:00")
    if comes_late:
        add_movement(engine, stray, 7, at)
    unattended_months(engine, "2026-04-02T05:00")
    execute(engine, "UPDATE organization SET timezone = :zone WHERE id = :id", zone=zone, id=stray)
    unattended_months(engine, "2026-05-02T05:00")
    found = rows(engine, "SELECT to_char(origin_month, 'YYYY-MM'), captures FROM ledger_entry WHERE captures = 7")
    assert found == [(origin, 7)]


def test_what_is_older_than_the_books_is_not_lost_where_all_zones_are_unknown(engine: Engine) -> None:
    stray = add_organization(engine, timezone="Mars/Olympus_Mons")
    add_movement(engine, stray, 5, "2026-02-10T10:00")
    unattended_months(engine, "2026-03-02T05:00")
    add_movement(engine, stray, 7, "2025-11-10T10:00")
    unattended_months(engine, "2026-04-02T05:00")
    execute(engine, "UPDATE organization SET timezone = 'Asia/Tokyo' WHERE id = :id", id=stray)
    unattended_months(engine, "2026-05-02T05:00")
    assert rows(engine, "SELECT sum(captures) FROM ledger_entry") == [(12,)]


def unattended_months(engine: Engine, now: str) -> None:
    """Settle and close what is due, as the schedules would at `now`."""
    at = instant(now)
    with engine.connect() as connection:
        due = sorted({*due_months(connection, at, FIRST), *late_months(connection)})
    for month in due:
        settle(engine, month, now=at)
    with engine.connect() as connection:
        months = tuple(months_to_close(connection, at, FIRST))
    for month in months:
        close(engine, month, now=at)


def test_however_long_ago_the_first_month_is_the_first_with_movements_is_found_in_as_many_queries(
    engine: Engine,
) -> None:
    seller = add_organization(engine, timezone="Pacific/Kiritimati")
    # February in Kiritimati, and January in UTC.
    add_movement(engine, seller, 100, "2026-01-31T12:00")
    asked = []
    for first_month in (Month(2026, 1), Month(1970, 1)):
        with engine.connect() as connection, queries(engine) as statements:
            assert due_months(connection, NOW, first_month)[0] == FEBRUARY
        asked.append(len(statements))
    assert asked[0] == asked[1]
