"""Scheduled work, once per window: the one way in which every op on a schedule runs what it is for.

A start is recorded (`firings`), its window is claimed (`claims`), the work is done and its result stored. What the work
is stands with its caller, and how a run of Dagster shows it in `schedules.windows`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from ticketflow_orch.db.engine import transaction
from ticketflow_orch.db.errors import in_words
from ticketflow_orch.db.retrying import retried
from ticketflow_orch.jobs import claims, firings
from ticketflow_orch.jobs.firings import Firing, Outcome


class Status(StrEnum):
    """DONE: the work ran. REPEATED: it had run before. SKIPPED: another run is working on it.

    The last two had no effect.
    """

    DONE = "DONE"
    REPEATED = "REPEATED"
    SKIPPED = "SKIPPED"


@dataclass(frozen=True, slots=True)
class WorkDone:
    """What came of a start. `result`: what the work returned, now or then; of SKIPPED, who is working on it."""

    status: Status
    outcome: Outcome
    attempt: int | None
    result: Mapping[str, Any]


@dataclass(slots=True)
class ClaimedWindow:
    """A window whose start is recorded, for the block of `claimed_window` that works on it.

    `claim`: None where there is nothing to do. Else the window `is_ours`: the block does the work and hands in its
    result by `complete`. After the block `done` says what came of it.
    """

    firing: Firing
    outcome: Outcome
    claim: claims.Claim | None = None
    result: Mapping[str, Any] | None = None
    ended: WorkDone | None = None

    @property
    def is_ours(self) -> bool:
        """Whether the work is to be done, by the block that asks."""
        return self.claim is not None

    def complete(self, result: Mapping[str, Any]) -> None:
        """The work is done, and this came of it; stored when the block ends."""
        self.result = result

    @property
    def handed_in(self) -> Mapping[str, Any]:
        """The result that the block has handed in.

        Raises:
            RuntimeError: it has not.
        """
        if self.result is None:
            raise RuntimeError(f"{self.firing.job} {self.firing.key} has ended without a result")
        return self.result

    @property
    def done(self) -> WorkDone:
        """What came of the start.

        Raises:
            RuntimeError: the block has not ended yet.
        """
        if self.ended is None:
            raise RuntimeError(f"{self.firing.job} {self.firing.key} is still being worked on")
        return self.ended


@contextmanager
def claimed_window(engine: Engine, firing: Firing, lease: float = claims.LEASE) -> Iterator[ClaimedWindow]:
    """Record the firing and claim its window for the block; the block may find that there is nothing to do.

    The block may be killed and started again, so what it does must be harmless to repeat: the claim spares work and
    explains, the database's keys and state machines decide. The claim's lease, in seconds, is renewed while it runs. A
    retry waits for the end of the lease that it finds, at most as long as its own. All of this is tried again while the
    database is away, for as long as the engine is patient; what the block does is its own to try again. A claim that
    was swept meanwhile, and that nobody else has taken, is completed all the same; a block that fails gives it back.

    Raises:
        OvertakenError: the claim was lost meanwhile; what the block committed stands, its result is not stored.
        RuntimeError: the block has ended well and handed in no result.
    """
    window = _claimed(engine, firing, lease)
    held = window.claim
    if held is None:
        yield window
        return
    try:
        with claims.heartbeat(engine, held):
            yield window
        result = window.handed_in
    except BaseException as error:  # a run that is terminated gives its claim back too
        # Where that cannot be said, its lease ends; what went wrong with the work is what people must learn.
        with suppress(DBAPIError, claims.OvertakenError), transaction(engine) as connection:
            claims.fail(connection, held, f"{type(error).__name__}: {in_words(error)}")
        raise
    window.ended = WorkDone(Status.DONE, window.outcome, _finished(engine, held, result), result)


def run_once(
    engine: Engine, firing: Firing, work: Callable[[], Mapping[str, Any]], lease: float = claims.LEASE
) -> WorkDone:
    """What came of `work` in a `claimed_window`, where it is one function, tried again while the database is away.

    Raises:
        OvertakenError: as `claimed_window` does.
    """
    with claimed_window(engine, firing, lease) as window:
        if window.is_ours:
            window.complete(retried(engine, work))
    return window.done


def _claimed(engine: Engine, firing: Firing, lease: float) -> ClaimedWindow:
    outcome = write_down(engine, firing)
    held = claims.claim(engine, firing.job, firing.key, lease)
    if isinstance(held, claims.Busy) and outcome == Outcome.RETRY:
        # The holder may have crashed and seem to work until its lease ends. Skipping now would leave its work undone;
        # a holder that lives will have renewed its lease by then.
        time.sleep(min(held.remaining, lease))
        held = claims.claim(engine, firing.job, firing.key, lease)
    match held:
        case claims.Done(result):
            return ClaimedWindow(firing, outcome, ended=WorkDone(Status.REPEATED, outcome, None, result))
        case claims.Busy(owner, lease_until):
            busy = {"owner": owner, "lease_until": lease_until.isoformat()}
            return ClaimedWindow(firing, outcome, ended=WorkDone(Status.SKIPPED, outcome, None, busy))
        case claim:
            return ClaimedWindow(firing, outcome, claim)


def write_down(engine: Engine, firing: Firing) -> Outcome:
    """Record the firing and say what it is; tried again while the database is away, and recorded once all the same."""
    attempts = 0

    def attempt() -> Outcome:
        nonlocal attempts
        attempts += 1
        with transaction(engine) as connection:
            known = firings.recorded_here(connection, firing) if attempts > 1 else None
            return known or firings.record(connection, firing)

    return retried(engine, attempt)


def _finished(engine: Engine, held: claims.Claim, result: Mapping[str, Any]) -> int:
    """Store what the work came to; the number of the attempt that holds it."""

    def store() -> int:
        with transaction(engine) as connection:
            claims.finish(connection, held, result)
        return held.attempt

    def store_late() -> int:
        with transaction(engine) as connection:
            return claims.finish_late(connection, held, result).attempt

    try:
        return retried(engine, store)
    except claims.OvertakenError:
        # Perhaps the lease ended while the database was away, and a sweep came before the next beat: the work is done.
        return retried(engine, store_late)
