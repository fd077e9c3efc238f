"""Claims: one worker at a time, by the database's clock, and nothing for one who was overtaken."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.engine import URL

from ticketflow_orch.db.engine import transaction
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.jobs.claims import (
    Busy,
    Claim,
    Done,
    OvertakenError,
    claim,
    executions,
    fail,
    finish,
    heartbeat,
    release,
    stale_claims,
    sweep,
)

JOB, KEY = "close_events", "2026-06-02T02:30:00+00:00"
FAKETIME = shutil.which("faketime")
CLAIM = """
import sys
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.jobs.claims import claim
print(type(claim(connect_engine(sys.argv[1], "skewed"), "close_events", sys.argv[2])).__name__)
"""


def take(engine: Engine, lease: float = 60) -> Claim:
    held = claim(engine, JOB, KEY, lease)
    assert isinstance(held, Claim)
    return held


def lapse(engine: Engine) -> None:
    """Let the lease end, as if time had gone by."""
    with engine.begin() as connection:
        connection.execute(text("UPDATE job_execution SET lease_until = clock_timestamp() - interval '1 microsecond'"))


def act_and(engine: Engine, end: Callable[[Connection], None]) -> None:
    """An effect and the end of its claim, in one transaction."""
    with transaction(engine) as connection:
        connection.execute(text("INSERT INTO alert (kind, key) VALUES ('effect', 'of the zombie')"))
        end(connection)


def row(engine: Engine) -> tuple[Any, ...]:
    with engine.connect() as connection:
        return tuple(connection.execute(text("SELECT state, attempt, result FROM job_execution")).one())


@pytest.mark.every_server
def test_of_many_that_claim_at_once_one_wins(engine: Engine) -> None:
    barrier = Barrier(8)

    def attempt(_: int) -> Claim | Done | Busy:
        barrier.wait(timeout=20)
        return claim(engine, JOB, KEY)

    with ThreadPoolExecutor(8) as threads:
        kinds = sorted(type(one).__name__ for one in threads.map(attempt, range(8)))
    assert kinds == ["Busy"] * 7 + ["Claim"]
    assert row(engine)[:2] == ("PROCESSING", 1)


def test_of_many_that_take_over_at_once_one_wins(engine: Engine) -> None:
    take(engine)
    lapse(engine)
    barrier = Barrier(8)

    def attempt(_: int) -> Claim | Done | Busy:
        barrier.wait(timeout=20)
        return claim(engine, JOB, KEY)

    with ThreadPoolExecutor(8) as threads:
        kinds = sorted(type(one).__name__ for one in threads.map(attempt, range(8)))
    assert kinds == ["Busy"] * 7 + ["Claim"]
    assert row(engine)[:2] == ("PROCESSING", 2)


def test_a_claim_is_taken_over_when_its_lease_has_ended_and_not_before(engine: Engine) -> None:
    take(engine)
    busy = claim(engine, JOB, KEY)
    assert isinstance(busy, Busy)
    assert 0 < busy.remaining <= 60
    lapse(engine)
    assert take(engine).attempt == 2


def test_who_was_overtaken_can_neither_finish_nor_fail_and_changes_nothing(engine: Engine) -> None:
    zombie = take(engine)
    lapse(engine)
    successor = take(engine)
    for end in (
        lambda connection: finish(connection, zombie, {"by": "the zombie"}),
        lambda connection: fail(connection, zombie, "the zombie failed"),
    ):
        with pytest.raises(OvertakenError, match="attempt 1 was overtaken"):
            act_and(engine, end)
        assert row(engine) == ("PROCESSING", 2, None)
    with transaction(engine) as connection:
        finish(connection, successor, {"by": "the successor"})
        assert connection.execute(text("SELECT count(*) FROM alert")).scalar_one() == 0
    with pytest.raises(OvertakenError), transaction(engine) as connection:
        finish(connection, zombie, {"by": "the zombie"})
    assert row(engine) == ("COMPLETED", 2, {"by": "the successor"})


def test_work_that_is_completed_gives_its_result_to_whoever_comes_later(engine: Engine) -> None:
    held = take(engine)
    with transaction(engine) as connection:
        finish(connection, held, {"events": 7})
    assert claim(engine, JOB, KEY) == Done({"events": 7})
    assert isinstance(claim(engine, JOB, "another window"), Claim)


def test_work_that_failed_is_tried_again(engine: Engine) -> None:
    held = take(engine)
    with transaction(engine) as connection:
        fail(connection, held, "the disk is full")
    assert row(engine) == ("FAILED", 1, {"error": "the disk is full"})
    assert take(engine).attempt == 2
    assert row(engine) == ("PROCESSING", 2, None)


def test_the_heartbeat_keeps_a_claim_for_longer_than_its_lease(engine: Engine) -> None:
    held = take(engine, lease=2)
    with heartbeat(engine, held) as lost:
        time.sleep(2.5)
        assert isinstance(claim(engine, JOB, KEY), Busy)
        assert not lost.is_set()
    lapse(engine)
    assert take(engine).attempt == 2


def test_the_heartbeat_tells_when_the_claim_is_lost_and_does_not_renew_the_successors(engine: Engine) -> None:
    held = take(engine, lease=0.3)
    with heartbeat(engine, held) as lost:
        with engine.begin() as connection:
            connection.execute(text("UPDATE job_execution SET attempt = 2"))
        assert lost.wait(60)
    assert row(engine)[:2] == ("PROCESSING", 2)


def test_the_heartbeat_outlives_the_loss_of_its_connection(engine: Engine) -> None:
    held = take(engine, lease=3)
    with heartbeat(engine, held) as lost:
        with engine.begin() as connection:
            connection.execute(
                text("""
                    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                    WHERE datname = current_database() AND pid <> pg_backend_pid()
                """)
            )
        time.sleep(4)
        assert isinstance(claim(engine, JOB, KEY), Busy)
        assert not lost.is_set()


def test_a_claim_that_is_released_by_hand_is_free_and_its_holder_fenced_off(engine: Engine) -> None:
    held = take(engine)
    with transaction(engine) as connection:
        release(connection, JOB, KEY)
    with pytest.raises(OvertakenError), transaction(engine) as connection:
        finish(connection, held, {})
    assert take(engine).attempt == 3
    with pytest.raises(TicketflowError, match="is being processed"), transaction(engine) as connection:
        release(connection, JOB, "unknown")


def test_stale_claims_are_swept_once_and_their_holders_fenced_off(engine: Engine) -> None:
    held = take(engine)
    with transaction(engine) as connection:
        assert sweep(connection) == ()
    lapse(engine)
    with transaction(engine) as connection:
        assert [(one.job, one.key) for one in stale_claims(connection)] == [(JOB, KEY)]
        assert [one.alert.key for one in sweep(connection)] == [f"{JOB} {KEY} attempt 1"]
        assert sweep(connection) == ()
        assert [one.state for one in executions(connection, JOB)] == ["FAILED"]
    with pytest.raises(OvertakenError), transaction(engine) as connection:
        finish(connection, held, {})
    assert take(engine).attempt == 2


@pytest.mark.skipif(FAKETIME is None, reason="no faketime here")
@pytest.mark.parametrize("skew", ["+2h", "-2h"])
def test_a_worker_whose_clock_is_wrong_judges_leases_as_everybody_does(engine: Engine, url: URL, skew: str) -> None:
    def from_there() -> str:
        where = url.render_as_string(hide_password=False)
        command = [str(FAKETIME), "-f", skew, sys.executable, "-c", CLAIM, where, KEY]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()

    take(engine)
    assert from_there() == "Busy"
    lapse(engine)
    assert from_there() == "Claim"
    assert isinstance(claim(engine, JOB, KEY), Busy)
