"""Claims: a piece of work under a key is done once, by one worker at a time, no matter who starts it or how often.

The claim's row decides, by the database's clock. `attempt` is the fence: a worker that was overtaken while it slept
can no longer finish, however sure it is that it still holds the claim. What a start does with a claim is in `run_once`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Engine, Row
from sqlalchemy.exc import DBAPIError

from ticketflow_orch.db.engine import transaction
from ticketflow_orch.db.retrying import retried
from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.errors import InvalidInput
from ticketflow_orch.local.account import owner_name
from ticketflow_orch.outbox.alerts import Alert

LEASE = 60.0
# In seconds, after a beat that failed: anyone who finds the lease over may take the claim.
_NEXT_BEAT = 1.0


class ClaimState(StrEnum):
    """What has become of a claim; the words of `job_execution.state`."""

    PROCESSING = "PROCESSING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


class OvertakenError(RuntimeError):
    """Another worker took the claim over while this one was away; nothing may be written under it any more."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to do the work called (`job`, `key`): `attempt` counts from 1, `lease` is in seconds."""

    job: str
    key: str
    attempt: int
    lease: float


@dataclass(frozen=True, slots=True)
class Done:
    """The work was completed before; this is what came of it."""

    result: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Busy:
    """Another worker holds the claim; `owner` says who, `lease_until` (UTC) until when at least.

    `remaining`: the seconds until then by the database's clock.
    """

    owner: str
    lease_until: datetime
    remaining: float


@dataclass(frozen=True, slots=True)
class Execution:
    """A claim's row as people see it."""

    job: str
    key: str
    state: ClaimState
    attempt: int
    owner: str
    heartbeat_at: datetime
    lease_until: datetime | None

    @property
    def alert(self) -> Alert:
        """What operators learn of a claim that was found stale."""
        said = {"job": self.job, "key": self.key, "attempt": self.attempt, "owner": self.owner}
        return Alert("StaleClaim", f"{self.job} {self.key} attempt {self.attempt}", said, subject=self.job)


def claim(engine: Engine, job: str, key: str, lease: float = LEASE) -> Claim | Done | Busy:
    """Take the work (`job`, `key`) for `lease` seconds: when it is new, failed, or its holder let the lease end.

    Retried while the database is away; what this process turns out to hold already was taken by an attempt before.
    """
    attempts = 0

    def attempt() -> Claim | Done | Busy:
        nonlocal attempts
        attempts += 1
        return _claim(engine, job, key, lease, again=attempts > 1)

    return retried(engine, attempt)


def _claim(engine: Engine, job: str, key: str, lease: float, *, again: bool) -> Claim | Done | Busy:
    parameters = {"job": job, "key": key, "owner": owner_name(), "lease": lease}
    while True:
        with transaction(engine) as connection:
            attempt = connection.exec_driver_sql(_CLAIM, parameters).scalar_one_or_none()
        if attempt is not None:
            return Claim(job, key, attempt, lease)
        # In a statement of its own: the one above does not see what it had to wait for.
        with engine.connect() as connection:
            row = connection.exec_driver_sql(_LOOK, parameters).one_or_none()
        if row is not None and row.state == ClaimState.COMPLETED:
            return Done(row.result or {})
        if again and row is not None and row.state == ClaimState.PROCESSING and row.owner == owner_name():
            return Claim(job, key, row.attempt, lease)
        if row is not None and row.state == ClaimState.PROCESSING and row.held:
            return Busy(row.owner, row.lease_until, row.remaining)


def finish(connection: Connection, held: Claim, result: Mapping[str, Any]) -> None:
    """Complete the claim with `result`, in the caller's transaction; one that this attempt has completed stays so.

    Raises:
        OvertakenError: the claim is no longer ours; the transaction must not commit.
    """
    _end(connection, held, ClaimState.COMPLETED, result)


def finish_late(connection: Connection, held: Claim, result: Mapping[str, Any]) -> Claim:
    """Complete a claim that was swept while its work went on, as its next attempt; returns that.

    Raises:
        OvertakenError: somebody has taken it since, or a person has taken it from us; the transaction must not commit.
    """
    again = replace(held, attempt=held.attempt + 1)
    values = _fence(held) | {"owner": owner_name()}
    if (
        connection.exec_driver_sql(_TAKE_BACK, values).rowcount == 0
        and not connection.exec_driver_sql(_IS_OURS, values).scalar_one()
    ):
        raise OvertakenError(f"{held.job} {held.key}: attempt {held.attempt} was overtaken; it changes nothing")
    finish(connection, again, result)
    return again


def fail(connection: Connection, held: Claim, error: str) -> None:
    """Give the claim back as failed, so that the next taker tries again.

    Raises:
        OvertakenError: the claim is no longer ours.
    """
    _end(connection, held, ClaimState.FAILED, {"error": error})


@contextmanager
def heartbeat(engine: Engine, held: Claim) -> Iterator[threading.Event]:
    """Renew the lease three times per lease while the block runs, over a connection of its own.

    Yields an event that is set when the claim turned out to be lost; work in chunks looks at it in between.
    """
    ended, lost = threading.Event(), threading.Event()

    def beat() -> None:
        rest = held.lease / 3
        while not ended.wait(rest):
            # A database that is away for a moment costs a beat; the lease has room for another.
            rest = min(_NEXT_BEAT, held.lease / 3)
            with suppress(DBAPIError), transaction(engine) as connection:
                if connection.exec_driver_sql(_BEAT, _fence(held)).rowcount == 0:
                    lost.set()
                    return
                rest = held.lease / 3

    beater = threading.Thread(target=beat, name=f"heartbeat {held.job}", daemon=True)
    beater.start()
    try:
        yield lost
    finally:
        ended.set()
        beater.join()


def stale_claims(connection: Connection) -> tuple[Execution, ...]:
    """Claims whose holder let the lease end without finishing."""
    return tuple(_execution(row) for row in connection.exec_driver_sql(_STALE))


def sweep(connection: Connection) -> tuple[Execution, ...]:
    """Fail the stale claims, so that each is found by one sweep only; a holder that still works is fenced off."""
    return tuple(_execution(row) for row in connection.exec_driver_sql(_SWEEP))


def executions(connection: Connection, job: str | None = None, limit: int = 50) -> tuple[Execution, ...]:
    """The last `limit` claims, of one job or of all, the newest first."""
    rows = connection.exec_driver_sql(_LIST, {"job": job, "limit": limit})
    return tuple(_execution(row) for row in rows)


def release(connection: Connection, job: str, key: str) -> None:
    """Take a claim from its holder by hand: it becomes FAILED, and the holder is fenced off.

    Raises:
        InvalidInput: there is no such claim in PROCESSING.
    """
    if connection.exec_driver_sql(_RELEASE, {"job": job, "key": key}).rowcount == 0:
        raise InvalidInput(
            f"No claim ({job}, {key}) is being processed; `ticketflow claims list` shows those there are."
        )


def _execution(row: Row[Any]) -> Execution:
    return Execution(**{**row._mapping, "state": ClaimState(row.state)})


def _end(connection: Connection, held: Claim, state: ClaimState, result: Mapping[str, Any]) -> None:
    values = _fence(held) | {"state": state.value, "result": json.dumps(result, default=str)}
    if connection.exec_driver_sql(_END, values).rowcount == 0:
        raise OvertakenError(f"{held.job} {held.key}: attempt {held.attempt} was overtaken; it changes nothing")


def _fence(held: Claim) -> dict[str, Any]:
    return {"job": held.job, "key": held.key, "attempt": held.attempt, "lease": held.lease}


_CLAIM = sql(__file__, "claim")

_LOOK = sql(__file__, "look")

_BEAT = sql(__file__, "beat")

_END = sql(__file__, "end")

_TAKE_BACK = sql(__file__, "take_back")

_IS_OURS = sql(__file__, "is_ours")

# Those of an `Execution`.
_COLUMNS = "job, idempotency_key AS key, state, attempt, owner, heartbeat_at, lease_until"

_STALE = sql(__file__, "stale", columns=_COLUMNS)

_SWEEP = sql(__file__, "sweep", columns=_COLUMNS)

_LIST = sql(__file__, "list", columns=_COLUMNS)

_RELEASE = sql(__file__, "release")
