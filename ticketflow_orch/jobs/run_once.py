"""Scheduled work, once per window: the one way in which every op on a schedule runs what it is for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from ticketflow_orch.db.engine import transaction
from ticketflow_orch.db.errors import in_words
from ticketflow_orch.db.retrying import retried
from ticketflow_orch.jobs import claims, firings
from ticketflow_orch.jobs.firings import Firing


@dataclass(frozen=True, slots=True)
class WorkDone:
    """What came of a start. DONE: the work ran and `result` is what it returned.

    REPEATED: it had run before and `result` is what it returned then. SKIPPED: somebody else is at it; `result` says
    who. Neither had any effect.
    """

    status: Literal["DONE", "REPEATED", "SKIPPED"]
    outcome: firings.Outcome
    attempt: int | None
    result: Mapping[str, Any]


def run_once(
    engine: Engine, firing: Firing, work: Callable[[], Mapping[str, Any]], lease: float = claims.LEASE
) -> WorkDone:
    """Record the firing, claim its window, run `work` and store its result; or find that there is nothing to do.

    `work` may be killed and started again, so what it does must be harmless to repeat: the claim spares work and
    explains, the database's keys and state machines decide. Its lease, in seconds, is renewed while it runs. A retry
    waits for the end of the lease that it finds, at most as long as its own. While the database is away all of it is
    tried again, for as long as the engine is patient; a claim that was swept meanwhile, and that nobody else has taken,
    is completed all the same.

    Raises:
        OvertakenError: the claim was lost meanwhile; what the work committed stands, its result is not stored.
    """
    outcome = write_down(engine, firing)
    held = claims.claim(engine, firing.job, firing.key, lease)
    if isinstance(held, claims.Busy) and outcome == "RETRY":
        # Whoever is retried after a crash may seem to be at work until its lease ends. Skipping now would leave its
        # work undone; a holder that lives will have renewed its lease by then.
        time.sleep(min(held.remaining, lease))
        held = claims.claim(engine, firing.job, firing.key, lease)
    if isinstance(held, claims.Done):
        return WorkDone("REPEATED", outcome, None, held.result)
    if isinstance(held, claims.Busy):
        busy = {"owner": held.owner, "lease_until": held.lease_until.isoformat()}
        return WorkDone("SKIPPED", outcome, None, busy)
    try:
        with claims.heartbeat(engine, held):
            result = retried(engine, work)
    except BaseException as error:  # a run that is terminated gives its claim back too
        # Where that cannot be said, its lease ends; what went wrong with the work is what people must learn.
        with suppress(DBAPIError, claims.OvertakenError), transaction(engine) as connection:
            claims.fail(connection, held, f"{type(error).__name__}: {in_words(error)}")
        raise
    return WorkDone("DONE", outcome, _finished(engine, held, result), result)


def write_down(engine: Engine, firing: Firing) -> firings.Outcome:
    """Record the firing and tell what it is; tried again while the database is away, and written once all the same."""
    attempts = 0

    def attempt() -> firings.Outcome:
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
