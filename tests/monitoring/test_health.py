"""The health check: what counts as a problem, to the second, and how it is put."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.support.rows import instant
from ticketflow_orch.formatting.ages import written_out
from ticketflow_orch.jobs.claims import Execution
from ticketflow_orch.monitoring.health import problems
from ticketflow_orch.monitoring.obstacles import Obstacle
from ticketflow_orch.monitoring.snapshot import Counted, Situation
from ticketflow_orch.months import Month
from ticketflow_orch.outbox.backlog import Backlog

NOW = instant("2026-06-02T12:00")
WELL = Situation(
    business_now=NOW, database_now=NOW, clock_difference=0.2, firings=(), effects=(), undelivered=(),
    delivered=(), last_success={}, due_since={}, outbox=Backlog(NOW, None, 0, 0, 0, 0), payouts=(), unsettled=(),
    unstated={}, unknown_zones={}, parked=0, stale=(), stuck=0, without_ticket=0, unanswered={},
)  # fmt: skip


def found(**changes: Any) -> list[str]:
    return list(problems(replace(WELL, **changes), "Europe/Madrid", timedelta(minutes=15)))


def test_where_all_is_well_nothing_is_said() -> None:
    assert found() == []


@pytest.mark.parametrize(
    ("job", "longest"),
    [
        ("close_events", timedelta(days=3)),
        ("expire_reservations", timedelta(minutes=3)),
        ("send_reminders", timedelta(minutes=45)),
    ],
)
def test_work_that_is_due_for_more_than_three_intervals_is_a_problem(job: str, longest: timedelta) -> None:
    assert found(due_since={job: NOW - longest}) == []
    since = NOW - longest - timedelta(seconds=1)
    [line] = found(due_since={job: since})
    assert line.startswith(f"{job}: work has been due for {written_out(NOW - since)}, since {since.isoformat()}")


def test_a_stale_claim_is_named_with_its_holder() -> None:
    stale = Execution("close_events", "2026-06-01T02:30:00+00:00", "PROCESSING", 1, "host/1/word", NOW, NOW)
    [line] = found(stale=(stale,))
    assert line.startswith("claim (close_events, 2026-06-01T02:30:00+00:00): its holder host/1/word let the lease end")


@pytest.mark.parametrize(
    ("at", "lines"),
    # Day 3 of June is over in Madrid at 22:00 UTC.
    [(instant("2026-06-03T21:59:59"), 0), (instant("2026-06-03T22:00"), 1)],
)
def test_a_month_that_is_unsettled_after_day_3_is_a_problem(at: datetime, lines: int) -> None:
    assert len(found(business_now=at, unsettled=(Month(2026, 5),))) == lines


def test_december_is_due_in_the_year_after() -> None:
    assert found(business_now=instant("2027-01-02T12:00"), unsettled=(Month(2026, 12),)) == []
    assert len(found(business_now=instant("2027-01-04T12:00"), unsettled=(Month(2026, 12),))) == 1


def test_a_month_that_was_closed_days_ago_and_lacks_statements_is_a_problem() -> None:
    longest = timedelta(days=3)
    assert found(unstated={Month(2026, 4): NOW - longest}) == []
    [line] = found(unstated={Month(2026, 4): NOW - longest - timedelta(seconds=1)})
    assert line.startswith("2026-04 was closed 2026-05-30T11:59:59+00:00 and lacks statements; materialize")


def test_what_a_bad_row_keeps_from_being_told_is_said_once_and_each_unknown_zone_is_named() -> None:
    why = "Time zone 'Mars/Olympus' is unknown to tzdata; use an IANA name such as 'Europe/Madrid'."
    zones = {"hall-7": "Mars/Olympus", "hall-8": "UTC+2"}
    assert found(unanswered={"unsettled": why, "stuck": why}, unknown_zones=zones) == [
        f"data: a question had no answer: {why}",
        f"data: organization hall-7: {why}",
        "data: organization hall-8: " + why.replace("Mars/Olympus", "UTC+2"),
    ]


def test_an_event_that_waits_for_long_in_the_outbox_is_a_problem() -> None:
    waiting = WELL.outbox
    assert found(outbox=replace(waiting, due_since=NOW - timedelta(minutes=15))) == []
    [line] = found(outbox=replace(waiting, due_since=NOW - timedelta(minutes=16)))
    assert line.startswith("outbox: the oldest event has been due for 16 min 0 s; is the relay running")


def test_events_that_wait_for_a_person_are_a_problem_unless_a_person_holds_them() -> None:
    assert found(outbox=replace(WELL.outbox, dead=1, in_doubt=2000, held=3)) == [
        "outbox: 1 event DEAD; redrive or resolve what `ticketflow outbox list --state dead` shows.",
        "outbox: 2,000 events IN_DOUBT; resolve what `ticketflow outbox list --state in_doubt` shows.",
    ]


def test_payouts_in_doubt_are_a_problem_and_those_under_way_or_held_are_not() -> None:
    waiting = (Counted(("HELD",), 3), Counted(("REQUESTED",), 2))
    assert found(payouts=waiting) == []
    [line] = found(payouts=(*waiting, Counted(("IN_DOUBT",), 1)))
    assert line.startswith("payouts: 1 in doubt; ask the provider")


@pytest.mark.parametrize(("difference", "direction"), [(5.1, "ahead of"), (-5.1, "behind")])
def test_clocks_that_differ_by_more_than_five_seconds_are_a_problem(difference: float, direction: str) -> None:
    [line] = found(clock_difference=difference)
    assert line.startswith(f"clock: this host is 5.1 s {direction} the database")
    assert found(clock_difference=difference / 5.1 * 5) == []


def test_clocks_that_differ_by_more_than_a_minute_let_nothing_be_done_that_cannot_be_undone() -> None:
    assert "Nothing is settled" not in found(clock_difference=60.0)[0]
    [line] = found(clock_difference=-60.1)
    assert line.endswith("of both. Nothing is settled, closed, expired or reminded until then.")


def test_an_obstacle_is_a_problem_once_it_has_lasted_longer_than_its_patience() -> None:
    since = NOW - timedelta(days=3)
    obstacle = Obstacle("2026-05 is SETTLED and not closed", since, "`ticketflow close 2026-05`", timedelta(days=3))
    assert found(obstacles=(obstacle,)) == []
    assert found(obstacles=(obstacle,), database_now=NOW + timedelta(seconds=1)) == [
        "2026-05 is SETTLED and not closed, since 2026-05-30T12:00:00+00:00; `ticketflow close 2026-05`."
    ]


@pytest.mark.parametrize(
    ("age", "words"),
    [
        (timedelta(0), "0 s"),
        (timedelta(seconds=59), "59 s"),
        (timedelta(minutes=12, seconds=5), "12 min 5 s"),
        (timedelta(days=3, hours=4, minutes=59), "3 d 4 h"),
    ],
)
def test_ages_are_told_in_their_two_largest_units(age: timedelta, words: str) -> None:
    assert written_out(age) == words
