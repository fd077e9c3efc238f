"""Closed months: nothing is posted into them, and nothing about them is lost."""

from __future__ import annotations

from sqlalchemy import Engine

from tests.support.rows import add_movement, add_organization, add_void
from tests.support.settled import MARCH, close_month, ledger, settle
from tests.support.statements import APRIL, FEBRUARY
from ticketflow_orch.months import Month
from ticketflow_orch.settlement.due import late_months
from ticketflow_orch.settlement.passes import begin_or_join


def entries(engine: Engine) -> list[tuple[int, int, int, int]]:
    """Month, origin month, sequence and captures of every entry that is not an idle month's."""
    return [
        (month.month, origin.month, sequence, captures)
        for month, origin, sequence, captures in ledger(engine, "month", "origin_month", "sequence", "captures")
        if captures
    ]


def test_what_comes_late_for_a_closed_month_is_posted_in_the_first_month_that_is_not(engine: Engine) -> None:
    organization, other = add_organization(engine), add_organization(engine)
    add_movement(engine, organization, 100, "2026-02-10T10:00")
    add_movement(engine, other, 100, "2026-02-10T10:00")
    for month in (FEBRUARY, MARCH):
        settle(engine, month)
    # Late, and not looked at again before the month is closed.
    add_movement(engine, organization, 7, "2026-02-11T10:00")
    close_month(engine, FEBRUARY)
    add_movement(engine, organization, 20, "2026-02-12T10:00")
    settled = [(2, 2, 0, 100), (2, 2, 0, 100)]
    assert settle(engine, FEBRUARY).settlement is None
    assert settle(engine, APRIL).rows_new == 2
    assert entries(engine) == settled
    result = settle(engine, MARCH)
    assert (result.rows_new, result.rows_adjusted) == (0, 1)
    assert entries(engine) == [*settled, (3, 2, 0, 27)]
    assert settle(engine, MARCH).changed_nothing
    add_movement(engine, organization, 1, "2026-02-12T10:00")
    assert settle(engine, APRIL).changed_nothing
    assert settle(engine, MARCH).rows_adjusted == 1
    assert entries(engine) == [*settled, (3, 2, 0, 27), (3, 2, 1, 1)]


def test_what_comes_late_for_several_closed_months_follows_the_first_open_one(engine: Engine) -> None:
    organization = add_organization(engine)
    for month in (FEBRUARY, MARCH):
        settle(engine, month)
        close_month(engine, month)
    add_movement(engine, organization, 2, "2026-02-10T10:00")
    add_movement(engine, organization, 3, "2026-03-10T10:00")
    add_movement(engine, organization, 4, "2026-04-10T10:00")
    assert settle(engine, APRIL).rows_adjusted == 2
    assert entries(engine) == [(4, 2, 0, 2), (4, 3, 0, 3), (4, 4, 0, 4)]
    close_month(engine, APRIL)
    add_movement(engine, organization, 5, "2026-02-10T10:00")
    assert settle(engine, Month(2026, 5)).rows_adjusted == 1
    assert entries(engine) == [(4, 2, 0, 2), (4, 3, 0, 3), (4, 4, 0, 4), (5, 2, 0, 5)]
    assert settle(engine, Month(2026, 5)).changed_nothing


def test_what_comes_late_is_asked_for_however_far_closing_is_behind(engine: Engine) -> None:
    organization = add_organization(engine)
    for month in (FEBRUARY, MARCH, APRIL):
        settle(engine, month)
    assert due_again(engine) == []
    close_month(engine, FEBRUARY)
    # March's only pass was before February was closed.
    add_movement(engine, organization, 777, "2026-02-10T10:00")
    assert due_again(engine) == [MARCH]
    settle(engine, MARCH)
    assert due_again(engine) == []
    add_movement(engine, organization, 5, "2026-03-10T10:00")
    add_movement(engine, organization, 9, "2026-04-10T10:00")
    assert due_again(engine) == [MARCH, APRIL]
    close_month(engine, MARCH)
    assert due_again(engine) == [APRIL]
    settle(engine, APRIL)
    assert due_again(engine) == []
    assert entries(engine) == [(3, 2, 0, 777), (4, 3, 0, 5), (4, 4, 1, 9)]
    begin_or_join(engine, APRIL)
    add_movement(engine, organization, 1, "2026-04-10T10:00")
    assert due_again(engine) == [APRIL]


def due_again(engine: Engine) -> list[Month]:
    with engine.connect() as connection:
        return list(late_months(connection))


def test_an_idle_organization_gets_no_entry_about_a_closed_month(engine: Engine) -> None:
    first, _, third = (add_organization(engine) for _ in range(3))
    settle(engine)
    close_month(engine, MARCH)
    # New, and between those for whom something came late.
    add_organization(engine, id=third + 1000)
    last = add_organization(engine, id=third + 2000)
    for organization in (first, last):
        add_movement(engine, organization, 5, "2026-03-10T10:00")
    assert settle(engine, APRIL).rows_adjusted == 2
    about_march = [
        row for row in ledger(engine, "organization_id", "month", "origin_month") if row[2] == MARCH.first_day
    ]
    assert about_march[-2:] == [(third, MARCH.first_day, MARCH.first_day), (last, APRIL.first_day, MARCH.first_day)]
    assert len(about_march) == 3 + 2


def test_an_organization_that_is_parked_in_a_closed_month_is_tried_again_until_it_is_mended(engine: Engine) -> None:
    poisoned, _ = add_organization(engine), add_organization(engine)
    poison = [add_movement(engine, poisoned, 2**62, "2026-02-10T10:00") for _ in range(3)]
    assert [parked.month for parked in settle(engine, FEBRUARY).parked] == [FEBRUARY]
    close_month(engine, FEBRUARY)
    for _ in range(2):
        assert [parked.month for parked in settle(engine).parked] == [FEBRUARY]
    for movement in poison[:2]:
        add_void(engine, movement)
    assert settle(engine).parked == ()
    assert entries(engine) == [(3, 2, 0, 2**62)]
    assert settle(engine).changed_nothing


def test_a_month_that_was_closed_before_there_was_anybody_in_it_takes_late_movements_too(engine: Engine) -> None:
    settle(engine, FEBRUARY)
    close_month(engine, FEBRUARY)
    add_movement(engine, add_organization(engine), 100, "2026-02-10T10:00")
    settle(engine)
    assert entries(engine) == [(3, 2, 0, 100)]


def test_a_time_zone_that_is_new_since_a_month_was_closed_takes_part_in_it(engine: Engine) -> None:
    add_organization(engine)
    settle(engine, FEBRUARY)
    close_month(engine, FEBRUARY)
    add_movement(engine, add_organization(engine, timezone="Asia/Tokyo"), 100, "2026-02-10T10:00")
    settle(engine)
    assert entries(engine) == [(3, 2, 0, 100)]


def test_a_full_pass_that_waited_takes_back_nothing_that_was_read_of_a_closed_month_meanwhile(engine: Engine) -> None:
    organization = add_organization(engine)
    add_movement(engine, organization, 100, "2026-02-10T10:00")
    settle(engine, FEBRUARY)
    begin_or_join(engine, MARCH, full=True)
    add_movement(engine, organization, 50, "2026-02-11T10:00")
    settle(engine, FEBRUARY)
    close_month(engine, FEBRUARY)
    assert settle(engine, MARCH).joined
    assert entries(engine) == [(2, 2, 0, 100), (2, 2, 1, 50)]


def test_a_parking_in_a_closed_month_outlives_a_pass_that_sees_less_than_what_it_failed_on(engine: Engine) -> None:
    organization = add_organization(engine)
    add_movement(engine, organization, 100, "2026-02-10T10:00")
    begin_or_join(engine, MARCH)
    poisonous = [add_movement(engine, organization, 2**62, "2026-02-11T10:00") for _ in range(3)]
    assert len(settle(engine, FEBRUARY).parked) == 1
    close_month(engine, FEBRUARY)
    assert len(settle(engine, MARCH).parked) == 1
    assert entries(engine) == []
    for movement in poisonous:
        add_void(engine, movement)
    assert settle(engine, MARCH).parked == ()
    assert entries(engine) == [(3, 2, 0, 100)]
