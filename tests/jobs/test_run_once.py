"""Scheduled work happens once per window: in sequence, at once, after a failure, after a crash."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier, Event
from typing import Any

import pytest
from sqlalchemy import Engine, text

from tests.support.rows import instant
from ticketflow_orch.jobs.claims import OvertakenError, claim
from ticketflow_orch.jobs.firings import Firing, Outcome
from ticketflow_orch.jobs.run_once import Status, WorkDone, claimed_window, run_once
from ticketflow_orch.local.account import owner_name

FIRST = Firing("close_events", instant("2026-06-02T02:30"), "run-1")
RETRY = replace(FIRST, run_id="run-2", parent_run_id="run-1")


class Work:
    """Work that counts how often it was done."""

    def __init__(self, during: Callable[[], None] = lambda: None) -> None:
        self.times = 0
        self._during = during

    def __call__(self) -> Mapping[str, Any]:
        self.times += 1
        self._during()
        return {"events": 7}


def claimed(engine: Engine) -> list[tuple[Any, ...]]:
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text("SELECT state, attempt, result FROM job_execution"))]


@pytest.mark.every_server
def test_work_is_done_once_and_its_result_kept_for_those_who_come_later(engine: Engine) -> None:
    work = Work()
    assert run_once(engine, FIRST, work) == WorkDone("DONE", "ACCEPTED", 1, {"events": 7})
    assert run_once(engine, replace(FIRST, run_id="run-2"), work) == WorkDone(
        "REPEATED", "DUPLICATE", None, {"events": 7}
    )
    assert work.times == 1


def test_of_eight_runs_of_one_window_at_once_one_does_the_work(engine: Engine) -> None:
    barrier, over, work = Barrier(8), Event(), Work()

    def run(number: int) -> WorkDone:
        barrier.wait(timeout=20)
        done = run_once(engine, replace(FIRST, run_id=f"run-{number}"), work)
        over.set()
        return done

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(run, range(8)))
    assert work.times == 1
    assert [done.status for done in found].count("DONE") == 1
    assert {done.status for done in found} <= {"DONE", "REPEATED", "SKIPPED"}
    assert sorted(done.outcome for done in found) == ["ACCEPTED"] + ["DUPLICATE"] * 7


def test_while_somebody_is_at_it_others_leave_politely_and_say_who(engine: Engine) -> None:
    def interfere() -> None:
        other = run_once(engine, replace(FIRST, run_id="run-2"), Work())
        assert (other.status, other.outcome, other.result["owner"]) == ("SKIPPED", "DUPLICATE", owner_name())

    assert run_once(engine, FIRST, Work(interfere)).status == "DONE"


@pytest.mark.parametrize("error", [ValueError("no such event"), KeyboardInterrupt("terminated")])
def test_work_that_fails_or_is_terminated_gives_its_claim_back_and_its_retry_does_it(
    engine: Engine, error: BaseException
) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)):
        run_once(engine, FIRST, Work(fail))
    assert claimed(engine) == [("FAILED", 1, {"error": f"{type(error).__name__}: {error}"})]
    assert run_once(engine, RETRY, Work()) == WorkDone("DONE", "RETRY", 2, {"events": 7})


def test_who_is_overtaken_while_at_work_is_told_and_stores_nothing(engine: Engine) -> None:
    def be_overtaken() -> None:
        with engine.begin() as connection:
            connection.execute(text("UPDATE job_execution SET lease_until = clock_timestamp() - interval '1 second'"))
        assert run_once(engine, RETRY, lambda: {"events": 8}).status == "DONE"
        with engine.begin() as connection:
            # A retry is a process of its own.
            connection.execute(text("UPDATE job_execution SET owner = 'another process'"))

    with pytest.raises(OvertakenError):
        run_once(engine, FIRST, Work(be_overtaken))
    assert claimed(engine) == [("COMPLETED", 2, {"events": 8})]


def test_the_retry_of_a_run_that_was_killed_waits_for_the_end_of_its_lease_and_does_the_work(engine: Engine) -> None:
    claim(engine, FIRST.job, FIRST.key, lease=2)
    assert run_once(engine, replace(FIRST, run_id="run-2"), Work()).status == "SKIPPED"
    assert run_once(engine, RETRY, Work()) == WorkDone("DONE", "RETRY", 2, {"events": 7})


def test_a_retry_leaves_a_holder_that_lives_in_peace_after_one_lease(engine: Engine) -> None:
    def be_retried() -> None:
        assert run_once(engine, RETRY, Work(), lease=2).status == "SKIPPED"

    assert run_once(engine, FIRST, Work(be_retried), lease=2).status == "DONE"


def test_a_block_does_the_work_of_a_window_that_is_its_own_and_sees_why_another_is_not(engine: Engine) -> None:
    with claimed_window(engine, FIRST) as window:
        assert window.is_ours
        with claimed_window(engine, replace(FIRST, run_id="run-2")) as other:
            assert not other.is_ours
        assert (other.done.status, other.done.result["owner"]) == ("SKIPPED", owner_name())
        window.complete({"events": 7})
        assert claimed(engine) == [("PROCESSING", 1, None)]
    assert window.done == WorkDone(Status.DONE, Outcome.ACCEPTED, 1, {"events": 7})
    with claimed_window(engine, RETRY) as again:
        assert not again.is_ours
    assert again.done == WorkDone(Status.REPEATED, Outcome.RETRY, None, {"events": 7})


def test_a_block_that_hands_in_no_result_has_not_done_the_work(engine: Engine) -> None:
    with pytest.raises(RuntimeError, match="without a result"), claimed_window(engine, FIRST):
        pass
    [(state, attempt, _)] = claimed(engine)
    assert (state, attempt) == ("FAILED", 1)
