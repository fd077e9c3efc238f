"""Claims: a piece of work under a key is done once, by one worker at a time, whoever starts it and however often.

The claim's row decides, by the database's clock. `attempt` is the fence: a worker that was overtaken while it slept
can no longer finish, however sure it is that it still holds the claim.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from ticketflow_orch.db.engine import transaction
from ticketflow_orch.db.retrying import retried
from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.errors import InvalidInput
from ticketflow_orch.local.account import owner_name
from ticketflow_orch.outbox.alerts import Alert

LEASE = 60.0
# In seconds, after a beat that failed: whoever finds the lease over may take the claim.
_NEXT_BEAT = 1.0


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
    """Somebody else is working; `owner` says who, `lease_until` (UTC) until when at least.

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
    state: str
    attempt: int
    owner: str
    heartbeat_at: datetime
    lease_until: datetime | None

    @property
    def alert(self) -> Alert:
        """What operators learn of a claim that was found stale."""
        told = {"job": self.job, "key": self.key, "attempt": self.attempt, "owner": self.owner}
        return Alert("StaleClaim", f"{self.job} {self.key} attempt {self.attempt}", told, subject=self.job)


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
        if row is not None and row.state == "COMPLETED":
            return Done(row.result or {})
        if again and row is not None and row.state == "PROCESSING" and row.owner == owner_name():
            return Claim(job, key, row.attempt, lease)
        if row is not None and row.state == "PROCESSING" and row.held:
            return Busy(row.owner, row.lease_until, row.remaining)


def finish(connection: Connection, held: Claim, result: Mapping[str, Any]) -> None:
    """Complete the claim with `result`, in the caller's transaction; one that this attempt has completed stays so.

    Raises:
        OvertakenError: the claim is no longer ours; the transaction must not commit.
    """
    _end(connection, held, "COMPLETED", result)


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
    _end(connection, held, "FAILED", {"error": error})


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
    return tuple(Execution(*row) for row in connection.exec_driver_sql(_STALE))


def sweep(connection: Connection) -> tuple[Execution, ...]:
    """Fail the stale claims, so that each is found by one sweep only; whoever still believes in one is fenced off."""
    return tuple(Execution(*row) for row in connection.exec_driver_sql(_SWEEP))


def executions(connection: Connection, job: str | None = None, limit: int = 50) -> tuple[Execution, ...]:
    """The last `limit` claims, of one job or of all, the newest first."""
    return tuple(Execution(*row) for row in connection.exec_driver_sql(_LIST, {"job": job, "limit": limit}))


def release(connection: Connection, job: str, key: str) -> None:
    """Take a claim from its holder by hand: it becomes FAILED, and whoever held it is fenced off.

    Raises:
        InvalidInput: there is no such claim in PROCESSING.
    """
    if connection.exec_driver_sql(_RELEASE, {"job": job, "key": key}).rowcount == 0:
        raise InvalidInput(
            f"No claim ({job}, {key}) is being processed; `ticketflow claims list` shows those there are."
        )


def _end(connection: Connection, held: Claim, state: str, result: Mapping[str, Any]) -> None:
    values = _fence(held) | {"state": state, "result": json.dumps(result, default=str)}
    if connection.exec_driver_sql(_END, values).rowcount == 0:
        raise OvertakenError(f"{held.job} {held.key}: attempt {held.attempt} was overtaken; it changes nothing")


def _fence(held: Claim) -> dict[str, Any]:
    return {"job": held.job, "key": held.key, "attempt": held.attempt, "lease": held.lease}


_CLAIM = """
    INSERT INTO job_execution AS held (job, idempotency_key, state, owner, lease_until)
    VALUES (%(job)s, %(key)s, 'PROCESSING', %(owner)s, clock_timestamp() + make_interval(secs => %(lease)s))
    ON CONFLICT (job, idempotency_key) DO UPDATE SET
        state = 'PROCESSING', attempt = held.attempt + 1, owner = excluded.owner, heartbeat_at = clock_timestamp(),
        lease_until = excluded.lease_until, started_at = clock_timestamp(), finished_at = NULL, result = NULL
    WHERE held.state = 'FAILED' OR (held.state = 'PROCESSING' AND held.lease_until < clock_timestamp())
    RETURNING attempt
"""

_LOOK = """
    SELECT state, owner, attempt, lease_until, result, lease_until >= now.at AS held,
        CAST(extract(epoch FROM lease_until - now.at) AS float) AS remaining
    FROM (SELECT clock_timestamp() AS at) AS now, job_execution WHERE job = %(job)s AND idempotency_key = %(key)s
"""

_BEAT = """
    UPDATE job_execution
    SET heartbeat_at = clock_timestamp(), lease_until = clock_timestamp() + make_interval(secs => %(lease)s)
    WHERE job = %(job)s AND idempotency_key = %(key)s AND attempt = %(attempt)s AND state = 'PROCESSING'
"""

_END = """
    UPDATE job_execution SET state = %(state)s, result = %(result)s::jsonb, lease_until = NULL,
        finished_at = clock_timestamp()
    WHERE job = %(job)s AND idempotency_key = %(key)s AND attempt = %(attempt)s
        AND (state = 'PROCESSING' OR (state = 'COMPLETED' AND %(state)s = 'COMPLETED'))
"""

# A sweep leaves the attempt as it was; who takes a claim, or releases it by hand, counts it up.
_TAKE_BACK = """
    UPDATE job_execution SET state = 'PROCESSING', attempt = attempt + 1, owner = %(owner)s, finished_at = NULL,
        result = NULL, heartbeat_at = clock_timestamp(),
        lease_until = clock_timestamp() + make_interval(secs => %(lease)s), started_at = clock_timestamp()
    WHERE job = %(job)s AND idempotency_key = %(key)s AND attempt = %(attempt)s AND state = 'FAILED'
"""

_IS_OURS = """
    SELECT EXISTS (
        SELECT FROM job_execution
        WHERE job = %(job)s AND idempotency_key = %(key)s AND attempt = %(attempt)s::integer + 1
            AND state = 'COMPLETED' AND owner = %(owner)s)
"""

_COLUMNS = "job, idempotency_key, state, attempt, owner, heartbeat_at, lease_until"

_STALE = sql(__file__, "stale", columns=_COLUMNS)

_SWEEP = sql(__file__, "sweep", columns=_COLUMNS)

_LIST = sql(__file__, "list", columns=_COLUMNS)

_RELEASE = """
    UPDATE job_execution SET state = 'FAILED', attempt = attempt + 1, lease_until = NULL,
        finished_at = clock_timestamp(), result = jsonb_build_object('error', 'released by hand')
    WHERE job = %(job)s AND idempotency_key = %(key)s AND state = 'PROCESSING'
"""
