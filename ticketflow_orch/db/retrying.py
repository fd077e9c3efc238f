"""Retrying: what a cut connection, a server that restarts or another session's lock spoils is done again, in seconds.

No statement is sent again by itself, and no COMMIT whose answer was lost: a whole step is, which begins by looking at
what is there. Its keys and states say what an earlier attempt has committed. What fails on its data fails at once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection, Engine
from tenacity import RetryCallState, Retrying, nap, retry_if_exception, wait_random_exponential

from ticketflow_orch.db.engine import PATIENCE_OPTION
from ticketflow_orch.db.errors import database_fault, is_locked

_LOG = logging.getLogger(__name__)
# In seconds. The rest before an attempt is drawn between nothing and a bound that doubles, so that those who were cut
# off together do not come back together.
_FIRST_REST = 0.5
_LONGEST_REST = 10.0
_GIVEN_UP = "Given up after "

Result = TypeVar("Result")


def retried(
    engine: Engine, step: Callable[[], Result], until: threading.Event | None = None, *, waiting: bool = True
) -> Result:
    """What `step` returns, which is done again while the database is away or others are in its way.

    For as long as the engine is patient, counted from the first failure, and not beyond `until`; an engine without
    patience fails at once. `waiting`: also for a lock that others did not give up in time. `step` must be harmless to
    repeat, and look for itself what an attempt before it has done. A step inside of another that gave up is not tried
    again by the outer one.
    """
    patience = float(engine.get_execution_options().get(PATIENCE_OPTION, 0))
    if not patience:
        return step()
    bound = _Bound(patience, until)
    attempts = Retrying(
        retry=retry_if_exception(lambda error: is_transient(error) and (waiting or not is_locked(error))),
        wait=wait_random_exponential(multiplier=_FIRST_REST, max=_LONGEST_REST),
        stop=bound,
        sleep=nap.sleep if until is None else nap.sleep_using_event(until),
        before_sleep=_say,
        reraise=True,
    )
    try:
        return attempts(step)
    except Exception as error:
        if bound.is_reached:
            error.add_note(f"{_GIVEN_UP}{bound.attempts} attempts within {bound.waited:.0f} s.")
        raise


def asked(engine: Engine, question: Callable[[Connection], Result]) -> Result:
    """What the database answers to `question`, which reads only and is asked again while the database is away."""

    def ask() -> Result:
        with engine.connect() as connection:
            return question(connection)

    return retried(engine, ask)


def is_transient(error: BaseException) -> bool:
    """Whether `error` passes by itself, as far as its kind tells, and nobody has tried for long enough already."""
    fault = database_fault(error)
    return fault is not None and fault.is_transient and not _was_given_up(error)


class _Bound:
    """When to stop: some time after the first failure, however long the work before it took."""

    def __init__(self, patience: float, until: threading.Event | None) -> None:
        self._patience = patience
        self._until = until
        self._first_failure: float | None = None
        self.attempts = 0
        self.waited = 0.0
        self.is_reached = False

    def __call__(self, state: RetryCallState) -> bool:
        now = time.monotonic()
        self._first_failure = now if self._first_failure is None else self._first_failure
        self.attempts, self.waited = state.attempt_number, now - self._first_failure
        self.is_reached = self.waited >= self._patience or (self._until is not None and self._until.is_set())
        return self.is_reached


def _was_given_up(error: BaseException) -> bool:
    return any(note.startswith(_GIVEN_UP) for note in getattr(error, "__notes__", ()))


def _say(state: RetryCallState) -> None:
    error = None if state.outcome is None else state.outcome.exception()
    fault = None if error is None else database_fault(error)
    if fault is not None:
        _LOG.warning("%s Attempt %d follows in %.1f s.", fault.sentence, state.attempt_number + 1, state.upcoming_sleep)
