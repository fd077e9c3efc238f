"""Firings: the first start of a window, its retries, and its duplicates, told apart."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from threading import Barrier

import pytest
from sqlalchemy import Engine, text

from tests.support.rows import instant
from ticketflow_orch.db.engine import transaction
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.jobs.firings import (
    Firing,
    Outcome,
    duplicate_windows,
    firing_by_hand,
    record,
    scheduled_firing,
    window_tags,
)

TICK = instant("2026-06-02T02:30")
FIRST = Firing("close_events", TICK, "run-1")


def fire(engine: Engine, firing: Firing) -> Outcome:
    with transaction(engine) as connection:
        return record(connection, firing)


@pytest.mark.every_server
def test_the_first_start_of_a_window_is_accepted_and_every_other_is_a_duplicate(engine: Engine) -> None:
    assert fire(engine, FIRST) == "ACCEPTED"
    assert fire(engine, replace(FIRST, run_id="run-2")) == "DUPLICATE"
    assert fire(engine, FIRST) == "DUPLICATE"
    assert fire(engine, replace(FIRST, run_id="run-3", parent_run_id="run-1")) == "RETRY"
    assert fire(engine, replace(FIRST, scheduled_for=TICK + timedelta(days=1))) == "ACCEPTED"
    assert fire(engine, replace(FIRST, partition="2026-05")) == "ACCEPTED"
    assert fire(engine, replace(FIRST, job="send_reminders")) == "ACCEPTED"


def test_of_many_starts_at_once_exactly_one_is_the_first(engine: Engine) -> None:
    barrier = Barrier(8)

    def start(number: int) -> Outcome:
        barrier.wait(timeout=20)
        return fire(engine, replace(FIRST, run_id=f"run-{number}"))

    with ThreadPoolExecutor(8) as threads:
        assert sorted(threads.map(start, range(8))) == ["ACCEPTED"] + ["DUPLICATE"] * 7


def test_a_window_with_several_runs_was_scheduled_twice_and_one_with_a_run_twice_redelivered(engine: Engine) -> None:
    for number in (1, 2, 2):
        fire(engine, replace(FIRST, run_id=f"run-{number}"))
    again = replace(FIRST, scheduled_for=TICK + timedelta(days=1))
    fire(engine, again)
    fire(engine, again)
    fire(engine, replace(FIRST, scheduled_for=TICK + timedelta(days=2)))
    fire(engine, replace(FIRST, scheduled_for=TICK + timedelta(days=2), run_id="run-9", parent_run_id="run-1"))
    with engine.connect() as connection:
        found = duplicate_windows(connection)
    assert [(window.kind, window.runs, window.alert.key) for window in found] == [
        ("scheduled twice", ("run-1", "run-2"), "close_events 2026-06-02T02:30:00+00:00"),
        ("redelivered", ("run-1",), "close_events 2026-06-03T02:30:00+00:00"),
    ]


def test_old_duplicates_are_left_alone(engine: Engine) -> None:
    fire(engine, FIRST)
    fire(engine, FIRST)
    with engine.begin() as connection:
        connection.execute(text("UPDATE job_firing SET fired_at = clock_timestamp() - interval '8 days'"))
        assert duplicate_windows(connection) == ()
        assert len(duplicate_windows(connection, within=timedelta(days=9))) == 1


def test_a_window_has_one_key_in_whatever_zone_its_tick_was_written() -> None:
    written = window_tags(instant("2026-06-02T04:30:00+02:00"))
    assert written == {"ticketflow/scheduled_for": "2026-06-02T04:30:00+02:00"}
    firing = scheduled_firing("close_events", "run-1", written)
    assert firing is not None
    assert firing == FIRST
    assert firing.key == "2026-06-02T02:30:00+00:00"


def test_a_run_knows_its_parent_and_its_partition_by_its_tags() -> None:
    tags = {**window_tags(TICK), "dagster/parent_run_id": "run-0", "dagster/partition": "2026-05"}
    assert scheduled_firing("x", "run-1", tags) == Firing("x", TICK, "run-1", "run-0", "2026-05")


def test_a_run_that_no_schedule_asked_for_has_a_window_of_its_own_that_its_retries_share() -> None:
    assert scheduled_firing("x", "run-1", {}) is None
    first, other = (firing_by_hand("x", run, {}, TICK) for run in ("run-1", "run-2"))
    retry = firing_by_hand("x", "run-3", {"dagster/parent_run_id": "run-1", "dagster/root_run_id": "run-1"}, TICK)
    assert first.key == retry.key != other.key
    assert retry.parent_run_id == "run-1"


def test_a_window_that_is_no_instant_is_refused() -> None:
    with pytest.raises(TicketflowError, match="'noon' is not an instant"):
        scheduled_firing("x", "run-1", {"ticketflow/scheduled_for": "noon"})
