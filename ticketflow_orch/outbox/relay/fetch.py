"""Claiming: events that may go now are taken for the length of a lease, in one statement.

An attempt counts when it is claimed. Its number is the fence: it only ever grows, and whoever was overtaken holds an
old one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row

from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.outbox.delivery import Message
from ticketflow_orch.outbox.relay.due import FULL, HEADS, IS_HEAD, IS_LOST, OLDEST, VISITED, Round


@dataclass(frozen=True, slots=True)
class Claimed:
    """An event in our hands. `counted`: its attempts that count, this one included.

    `doubt`: for how many seconds it had been in doubt when it was claimed, None: it was not. `destination`: who may
    have it where it is in doubt. `at`: when the claim was asked for, on this process's monotonic clock, so that
    everything counted from it errs on the safe side. `to`: the destination that it was claimed for. `age`: for how many
    seconds it had been tried. `lost`: how many of its last holders went away with it.
    """

    id: int
    message: Message
    counted: int
    doubt: float | None
    destination: str
    at: float
    to: str = ""
    age: float = 0.0
    lost: int = 0


@dataclass(frozen=True, slots=True)
class Lost:
    """An event whose holder let the lease run out; `to`: the destination of the look that found it."""

    id: int
    event_type: str
    to: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """What a look brought. `lost` was only seen. `blocked`: what stood in front may hide events that could go."""

    claimed: tuple[Claimed, ...] = ()
    lost: tuple[Lost, ...] = ()
    blocked: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """Whose events are claimed, of which `types` that go to `destination`, for a lease of so many seconds.

    `skipping`: the types whose dead events let later ones pass. `committing`: those whose transport's `commit` is
    written down.
    """

    owner: str
    lease: float
    destination: str
    types: tuple[str, ...]
    skipping: tuple[str, ...]
    committing: tuple[str, ...]

    @property
    def parameters(self) -> dict[str, Any]:
        """As the statements take it."""
        return {
            "owner": self.owner,
            "lease": self.lease,
            "destination": self.destination,
            "types": list(self.types),
            "skipping": list(self.skipping),
            "committing": list(self.committing),
        }


def claim_oldest(connection: Connection, wanted: Wanted, size: int, window: int) -> Look:
    """Claim up to `size` events among the oldest `window` that are due, shared out evenly among the types."""
    return _claim_seen(connection, _CLAIM_OLDEST, wanted, size, window)


def claim_any(connection: Connection, wanted: Wanted, window: int) -> Look:
    """Claim one event, any among the oldest `window` that are due.

    To try a destination that fails: by the oldest, what ails that one event would pass for the destination's for ever.
    """
    return _claim_seen(connection, _CLAIM_ANY, wanted, 1, window)


def claim_scattered(connection: Connection, wanted: Wanted, size: int, walk: Round) -> Look:
    """Claim up to `size` heads of the next aggregates of `walk`, which goes on."""
    at = time.monotonic()
    values = {
        **wanted.parameters,
        "size": size,
        "visited": VISITED,
        "after_type": walk.after[0],
        "after_id": walk.after[1],
    }
    rows = connection.exec_driver_sql(_CLAIM_SCATTERED, values).all()
    claimed = _claimed(rows, at, wanted)
    # What was visited behind the last that was wanted comes next.
    walk.closed = rows[0].visited < VISITED and len(claimed) < size
    walk.after = ("", "") if walk.closed else (rows[0].last_type, rows[0].last_id)
    return Look(claimed, _lost(rows[0], wanted))


def claim_lost(connection: Connection, wanted: Wanted, lost: Lost) -> Claimed | None:
    """Claim an event whose holder let the lease run out; None when somebody else has by now."""
    at = time.monotonic()
    claimed = _claimed(connection.exec_driver_sql(_CLAIM_LOST, {**wanted.parameters, "id": lost.id}).all(), at, wanted)
    return claimed[0] if claimed else None


def give_back(connection: Connection, unsent: Sequence[Claimed]) -> None:
    """Let others have what was claimed and not sent. The attempts stay used as numbers, and do not count."""
    values = {
        "ids": [one.id for one in unsent],
        "attempts": [one.message.attempt for one in unsent],
        "doubtful": [one.doubt is not None for one in unsent],
    }
    connection.exec_driver_sql(_GIVE_BACK, values)


def _claim_seen(connection: Connection, statement: str, wanted: Wanted, size: int, window: int) -> Look:
    window = math.ceil(window / len(wanted.types))
    at = time.monotonic()
    rows = connection.exec_driver_sql(statement, {**wanted.parameters, "size": size, "window": window}).all()
    claimed = _claimed(rows, at, wanted)
    return Look(claimed, _lost(rows[0], wanted), blocked=rows[0].full and len(claimed) < size)


def _claimed(rows: Sequence[Sequence[Any]], at: float, wanted: Wanted) -> tuple[Claimed, ...]:
    # By position, in the order of _taking: names would cost more than the objects.
    return tuple(
        Claimed(
            key,
            Message(
                event_id, event_type, aggregate_type, aggregate_id, data, occurred_at, body, attempt, doubt is not None
            ),
            counted,
            doubt,
            destination,
            at,
            wanted.destination,
            age or 0.0,
            lost,
        )
        for (
            key,
            event_id,
            event_type,
            aggregate_type,
            aggregate_id,
            data,
            occurred_at,
            body,
            attempt,
            counted,
            doubt,
            destination,
            age,
            lost,
            *_,
        ) in rows
        if key is not None
    )


def _lost(row: Row[Any], wanted: Wanted) -> tuple[Lost, ...]:
    found = zip(row.lost_ids or (), row.lost_types or (), strict=True)
    return tuple(Lost(key, event_type, wanted.destination) for key, event_type in found)


# Whoever comes first has the row; once it is locked, it is judged anew as it is then. A head remains one meanwhile.
_LOCK = """
    event.state = 'PENDING' AND event.available_at <= statement_timestamp()
    LIMIT %(size)s::bigint FOR UPDATE OF event SKIP LOCKED
"""


def _taking(source: str, doubt: str = "event.doubtful_since", also: str = "") -> str:
    return f"""
        UPDATE outbox_event AS event
        SET state = 'INFLIGHT', owner = %(owner)s::text, attempts = event.attempts + 1,
            lease_until = clock_timestamp() + make_interval(secs => %(lease)s::float),
            first_attempt_at = coalesce(event.first_attempt_at, clock_timestamp()), doubtful_since = {doubt},
            destination = CASE WHEN {doubt} IS NULL THEN %(destination)s::text
                ELSE coalesce(event.destination, %(destination)s::text) END {also}
        FROM {source}
        WHERE event.id = {source}.id
        RETURNING event.id, event_id, event.event_type, event.aggregate_type, event.aggregate_id,
            payload::text AS data, occurred_at, body, attempts, attempts - attempts_forgiven AS counted,
            CAST(extract(epoch FROM clock_timestamp() - doubtful_since) AS float) AS doubt, destination,
            CAST(extract(epoch FROM clock_timestamp() - tried_since) AS float) AS age, lost
    """


def _of_seen(order: str = "") -> str:
    return f"""
        WITH {OLDEST}, head AS MATERIALIZED (
            SELECT id FROM seen WHERE state = 'PENDING' AND {IS_HEAD} {order}
        ), free AS MATERIALIZED (
            SELECT event.id FROM head JOIN outbox_event AS event USING (id) WHERE {_LOCK}
        ), taken AS ({_taking("free")})
        SELECT taken.*, {FULL} AS full, lost.*
        FROM (SELECT array_agg(id) AS lost_ids, array_agg(event_type) AS lost_types FROM seen WHERE {IS_LOST}) AS lost
        LEFT JOIN taken ON true
    """


_CLAIM_OLDEST = _of_seen()
_CLAIM_ANY = _of_seen("ORDER BY random()")

_CLAIM_SCATTERED = sql(
    __file__, "claim_scattered", heads=HEADS, lock=_LOCK, taking_free=_taking("free"), is_lost=IS_LOST
)

# Where its commit would have been written down, a lost attempt that shows none was never sent.
_DOUBT_OF_LOST = """
    coalesce(event.doubtful_since, CASE WHEN event.event_type <> ALL (%(committing)s::text[])
        THEN clock_timestamp() END)
"""

# Nobody can say how the attempt ended, only that it was made, and by whom.
_COUNT_LOST = ", lost = event.lost + 1, tried_since = coalesce(event.tried_since, event.lease_until)"

_CLAIM_LOST = sql(__file__, "claim_lost", is_lost=IS_LOST, taking_found=_taking("found", _DOUBT_OF_LOST, _COUNT_LOST))

# Not sent, so not tried, unless an earlier attempt ended or was lost. Ended ones may all be forgiven by now. A commit
# that was written down without our hearing of it leaves no doubt.
_GIVE_BACK = """
    UPDATE outbox_event AS event
    SET state = 'PENDING', owner = NULL, lease_until = NULL, attempts_forgiven = attempts_forgiven + 1,
        first_attempt_at = CASE WHEN last_attempt_at IS NOT NULL OR attempts > attempts_forgiven + 1
            THEN first_attempt_at END,
        doubtful_since = CASE WHEN mine.doubtful THEN doubtful_since END
    FROM unnest(%(ids)s::bigint[], %(attempts)s::integer[], %(doubtful)s::boolean[])
        AS mine (id, attempt, doubtful)
    WHERE event.id = mine.id AND attempts = mine.attempt AND state = 'INFLIGHT'
"""
