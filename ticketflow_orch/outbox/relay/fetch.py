"""Claiming: events that may go now are taken for the length of a lease, in one statement.

An attempt counts when it is claimed. Its number is the fence: it only ever grows, and a relay that was overtaken
holds an old one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from sqlalchemy import Connection, Row

from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.outbox.delivery import Message
from ticketflow_orch.outbox.relay.due import HEADS, IS_FULL, IS_HEAD, IS_LOST, OLDEST, VISITED, Round

# What the statement `take` returns, as it is read below.
_TAKEN = (
    "id", "event_id", "event_type", "aggregate_type", "aggregate_id", "data", "occurred_at", "body", "attempts",
    "counted", "doubt", "destination", "age", "lost",
)  # fmt: skip


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
    return _claimed_of_seen(connection, _CLAIM_OLDEST, wanted, size, window)


def claim_any(connection: Connection, wanted: Wanted, window: int) -> Look:
    """Claim one event, any among the oldest `window` that are due.

    To try a destination that fails: by the oldest, what ails that one event would pass for the destination's for ever.
    """
    return _claimed_of_seen(connection, _CLAIM_ANY, wanted, 1, window)


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


def _claimed_of_seen(connection: Connection, statement: str, wanted: Wanted, size: int, window: int) -> Look:
    window = math.ceil(window / len(wanted.types))
    at = time.monotonic()
    rows = connection.exec_driver_sql(statement, {**wanted.parameters, "size": size, "window": window}).all()
    claimed = _claimed(rows, at, wanted)
    return Look(claimed, _lost(rows[0], wanted), blocked=rows[0].is_full and len(claimed) < size)


def _claimed(rows: Sequence[Row[Any]], at: float, wanted: Wanted) -> tuple[Claimed, ...]:
    if not rows:
        return ()
    # The names are looked up once: at each row they would cost more than the objects.
    in_order = itemgetter(*(rows[0]._fields.index(name) for name in _TAKEN))
    return tuple(
        Claimed(
            id=key,
            message=Message(
                event_id, event_type, aggregate_type, aggregate_id, data, occurred_at, body, attempt, doubt is not None
            ),
            counted=counted,
            doubt=doubt,
            destination=destination,
            at=at,
            to=wanted.destination,
            age=age or 0.0,
            lost=lost,
        )
        for (
            key, event_id, event_type, aggregate_type, aggregate_id, data, occurred_at, body, attempt, counted, doubt,
            destination, age, lost,
        ) in map(in_order, rows)
        if key is not None
    )  # fmt: skip


def _lost(row: Row[Any], wanted: Wanted) -> tuple[Lost, ...]:
    found = zip(row.lost_ids or (), row.lost_types or (), strict=True)
    return tuple(Lost(key, event_type, wanted.destination) for key, event_type in found)


_LOCK = sql(__file__, "lock")


def _take(source: str, doubtful_since: str = "event.doubtful_since", also: str = "") -> str:
    """The SQL that takes the events whose `id` the common table expression `source` has; binds of `Wanted`."""
    return sql(__file__, "take", source=source, doubtful_since=doubtful_since, also=also)


def _claim_seen(in_order: str) -> str:
    return sql(
        __file__,
        "claim_seen",
        oldest=OLDEST,
        is_head=IS_HEAD,
        in_order=in_order,
        lock=_LOCK,
        take=_take("free"),
        is_full=IS_FULL,
        is_lost=IS_LOST,
    )


_CLAIM_OLDEST = _claim_seen("")
_CLAIM_ANY = _claim_seen("ORDER BY random()")
_CLAIM_SCATTERED = sql(__file__, "claim_scattered", heads=HEADS, lock=_LOCK, take=_take("free"), is_lost=IS_LOST)

_COUNT_LOST = ", lost = event.lost + 1, tried_since = coalesce(event.tried_since, event.lease_until)"
_CLAIM_LOST = sql(
    __file__, "claim_lost", is_lost=IS_LOST, take=_take("found", sql(__file__, "doubtful_if_lost"), _COUNT_LOST)
)

_GIVE_BACK = sql(__file__, "give_back")
