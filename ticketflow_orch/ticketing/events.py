"""Closing events: what is over is closed, and the reservations that were still held for it are expired.

What happens to an event's buyers when it changes is in `event_changes`; expiring reservations by themselves is in
`reservations`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from sqlalchemy import Connection, Engine

from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.jobs.bad_rows import JobMemory, is_left_out
from ticketflow_orch.jobs.batches import BadRow, ChunkedWork, Taken, Wanted, as_array
from ticketflow_orch.jobs.intervals import CLOSE_EVENTS
from ticketflow_orch.outbox.events import ANEW, Known, append_by, appending
from ticketflow_orch.ticketing.lifecycle import (
    UNPAID,
    LifecycleRules,
    WouldEnd,
    announce_expired,
    judged,
    take_due,
)

# For how long, in seconds, the last round of a run waits for events that others have locked.
SWEEP_PATIENCE = 5.0
_UNDONE = "close nothing"


@dataclass(frozen=True, slots=True)
class Closed:
    """What closing did. `left`: events that are due and were not closed, because others hold them or they are bad."""

    events: int
    reservations_expired: int
    left: int
    bad: tuple[BadRow, ...]


def close_events(engine: Engine, rules: LifecycleRules) -> Closed:
    """Close every OPEN event whose end is past, and expire its reservations but those with a payment or with money.

    Judged by `ends_at`, never by the start. DRAFT and CANCELLED events stay as they are, and a closed event whose end
    moves into the future stays closed. A reservation that cannot be expired keeps no event open: it is left to the
    expiry, as its event's others are then.

    Raises:
        TicketflowError: this host's clock and the database's are too far apart to say what is past.
        ManyBadRowsError: more events cannot be closed than are looked for one by one; all others are.
    """
    rules = judged(engine, rules, _UNDONE)
    limits = _limits(rules)

    def take(connection: Connection, wanted: Wanted) -> Taken:
        return take_due(connection, wanted, _DUE, "event.ends_at", limits)

    def close(connection: Connection, ids: Sequence[int], orphans: Sequence[int]) -> tuple[int, int]:
        values = {"ids": as_array(ids), "orphans": as_array(orphans), "now": rules.now, "run_id": rules.run_id}
        row = append_by(connection, _CLOSE, values)
        return row.closed, row.expired

    def apply(connection: Connection, ids: Sequence[int]) -> tuple[int, int]:
        orphans = connection.exec_driver_sql(_LOCK_ORPHANS, {"ids": as_array(ids)}).scalar_one()
        return close(connection, ids, orphans or ())

    def alone(connection: Connection, event: int) -> tuple[int, int]:
        return close(connection, [event], ())

    memory = JobMemory(CLOSE_EVENTS.name, rules.now)
    work = ChunkedWork(engine, take, apply, rules.chunk_size, name=_NAME, memory=memory, alone=alone)
    effects = [*work.run(), *work.sweep(SWEEP_PATIENCE)]
    with engine.connect() as connection:
        left = connection.exec_driver_sql(_LEFT, limits).scalar_one()
    work.must_be_few()
    return Closed(sum(events for events, _ in effects), sum(held for _, held in effects), left, tuple(work.bad))


def would_close(engine: Engine, rules: LifecycleRules, named: int = 20) -> WouldEnd:
    """What `close_events` would do; nothing is written or locked.

    Raises:
        TicketflowError: as `close_events` does.
    """
    rules = judged(engine, rules, _UNDONE)
    with engine.connect() as connection:
        row = connection.exec_driver_sql(_WOULD_CLOSE, {**_limits(rules), "named": named}).one()
    return WouldEnd(row.events, row.reservations, 0, tuple(row.first or ()))


def oldest_due_event(connection: Connection, rules: LifecycleRules) -> datetime | None:
    """Since when the event that has waited longest has been due to be closed, if any is; what is left out is not."""
    values = {"grace": rules.closing_grace, **_limits(rules)}
    oldest: datetime | None = connection.exec_driver_sql(_OLDEST_DUE, values).scalar_one()
    return oldest


def _limits(rules: LifecycleRules) -> dict[str, datetime]:
    return {"ended_before": rules.now - rules.closing_grace}


_NAME = "SELECT external_ref FROM event WHERE id = %(id)s::bigint"

_DUE = """
    SELECT id, ends_at AS at FROM event
    WHERE status = 'OPEN' AND ends_at < %(ended_before)s::timestamptz
"""

_LEFT = "SELECT count(*) FROM event WHERE status = 'OPEN' AND ends_at < %(ended_before)s::timestamptz"

_LOCK_ORPHANS = sql(__file__, "lock_orphans")

_announce_closed = partial(
    appending,
    "EventClosed",
    "closed",
    aggregate_type="event",
    aggregate_id="public_id::text",
    payload="jsonb_build_object('event_id', public_id)",
    dedupe_key="'EventClosed:' || public_id",
    occurred_at="%(now)s::timestamptz",
)

_CLOSE: Mapping[Known, str] = {
    known: sql(
        __file__,
        "close",
        unpaid=UNPAID,
        announce_closed=_announce_closed(known=known),
        announce_expired=announce_expired(known=known),
    )
    for known in ANEW
}

_OLDEST_DUE = sql(__file__, "oldest_due", left_out=is_left_out(CLOSE_EVENTS.name, "event.id"))

_WOULD_CLOSE = sql(__file__, "would_close", unpaid=UNPAID)
