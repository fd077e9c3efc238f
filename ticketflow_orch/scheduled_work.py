"""Scheduled work, once per window: the one way in which every op on a schedule runs what it is for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Engine

from ticketflow_orch import executions, firings
from ticketflow_orch.database import transaction
from ticketflow_orch.firings import Firing


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
    engine: Engine, firing: Firing, work: Callable[[], Mapping[str, Any]], lease: float = executions.LEASE
) -> WorkDone:
    """Record the firing, claim its window, run `work` and store its result; or find that there is nothing to do.

    `work` may be killed and started again, so what it does must be harmless to repeat: the claim spares work and
    explains, the database's keys and state machines decide. Its lease, in seconds, is renewed while it runs. A retry
    waits for the end of the lease that it finds, at most as long as its own.

    Raises:
        OvertakenError: the claim was lost meanwhile; what the work committed stands, its result is not stored.
    """
    with transaction(engine) as connection:
        outcome = firings.record(connection, firing)
    held = executions.claim(engine, firing.job, firing.key, lease)
    if isinstance(held, executions.Busy) and outcome == "RETRY":
        # Whoever is retried after a crash may seem to be at work until its lease ends. Skipping now would leave its
        # work undone; a holder that lives will have renewed its lease by then.
        time.sleep(min(held.remaining, lease))
        held = executions.claim(engine, firing.job, firing.key, lease)
    if isinstance(held, executions.Done):
        return WorkDone("REPEATED", outcome, None, held.result)
    if isinstance(held, executions.Busy):
        busy = {"owner": held.owner, "lease_until": held.lease_until.isoformat()}
        return WorkDone("SKIPPED", outcome, None, busy)
    try:
        with executions.heartbeat(engine, held):
            result = work()
    except BaseException as error:  # a run that is terminated gives its claim back too
        with transaction(engine) as connection:
            executions.fail(connection, held, f"{type(error).__name__}: {error}")
        raise
    with transaction(engine) as connection:
        executions.finish(connection, held, result)
    return WorkDone("DONE", outcome, held.attempt, result)
