"""Reconsidering: events that the business kept back, for a reason that may have passed, are put before it again.

A date that was mistyped for some minutes, an address that was corrected: what was suppressed meanwhile goes after all,
under the same id. The business is asked exactly what it is asked before an attempt, so that nothing is taken up that
would be suppressed again at once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, Engine, Row
from sqlalchemy.exc import DBAPIError

from ticketflow_orch.db.engine import transaction
from ticketflow_orch.db.errors import is_data_fault
from ticketflow_orch.outbox.delivery import Message
from ticketflow_orch.outbox.delivery.handlers import EventKind, Preparer, Rendered

_LOG = logging.getLogger(__name__)
_CHUNK = 500
# What a question may look at: it is asked at each tick of a schedule.
_MOST = 5_000


def reconsider(engine: Engine, kinds: Mapping[str, EventKind], now: datetime) -> int:
    """Take up every suppressed event that nothing keeps back any more; how many there were. `now`: business time."""
    taken = 0
    after: int | None = 0
    while after is not None:
        with transaction(engine) as connection:
            rows = _looked_at(connection, now, after)
            ids = list(_free(connection, kinds, rows))
            taken += connection.exec_driver_sql(_TAKE_UP, {"ids": ids}).rowcount if ids else 0
        after = rows[-1].id if len(rows) == _CHUNK else None
    return taken


def may_go(connection: Connection, kinds: Mapping[str, EventKind], now: datetime) -> bool:
    """Whether `reconsider` would take up anything, or has too much to look at to know; writes nothing."""
    after = 0
    for _ in range(_MOST // _CHUNK):
        rows = _looked_at(connection, now, after)
        if any(True for _ in _free(connection, kinds, rows)):
            return True
        if len(rows) < _CHUNK:
            return False
        after = rows[-1].id
    return True


def message_of(row: Row[Any], *, rendered: bytes | None, attempt: int, doubtful: bool) -> Message:
    """The message of a row of the outbox, `data` being its payload as text, as one `attempt` at it has it."""
    return Message(
        event_id=row.event_id,
        event_type=row.event_type,
        aggregate_type=row.aggregate_type,
        aggregate_id=row.aggregate_id,
        data=row.data,
        occurred_at=row.occurred_at,
        rendered=rendered,
        attempt=attempt,
        doubtful=doubtful,
    )


def _looked_at(connection: Connection, now: datetime, after: int) -> Sequence[Row[Any]]:
    return connection.exec_driver_sql(_KEPT_BACK, {"now": now, "after": after, "size": _CHUNK}).all()


def _free(connection: Connection, kinds: Mapping[str, EventKind], rows: Sequence[Row[Any]]) -> Iterator[int]:
    """The ids of those that the business would send now."""
    for event_type, same in groupby(sorted(rows, key=lambda row: (row.event_type, row.id)), lambda row: row.event_type):
        kind = kinds.get(event_type)
        if kind is not None and kind.preparer is not None:
            yield from _asked(connection, kind.preparer, list(same))


def _asked(connection: Connection, preparer: Preparer, rows: Sequence[Row[Any]]) -> list[int]:
    messages = [_message(row) for row in rows]
    asking = connection.begin_nested()
    try:
        answers = preparer(connection, messages)
    except Exception as error:
        if isinstance(error, DBAPIError) and not is_data_fault(error):
            raise
        asking.rollback()
        if len(rows) > 1:
            return [found for row in rows for found in _asked(connection, preparer, [row])]
        # It stays kept back, and is asked about again.
        _LOG.exception("Event %s (%s) cannot be looked at again.", rows[0].event_id, rows[0].event_type)
        return []
    # It may have noted what it says, and says nothing yet.
    asking.rollback()
    return [row.id for row in rows if isinstance(answers.get(row.event_id), Rendered)]


def _message(row: Row[Any]) -> Message:
    doubtful = row.doubtful_since is not None
    return message_of(row, rendered=row.body if doubtful else None, attempt=row.attempts + 1, doubtful=doubtful)


_KEPT_BACK = """
    SELECT id, event_id, event_type, aggregate_type, aggregate_id, payload::text AS data, occurred_at, body,
        attempts, doubtful_since
    FROM outbox_event
    WHERE reconsider_until IS NOT NULL AND reconsider_until > %(now)s::timestamptz AND id > %(after)s::bigint
    ORDER BY id LIMIT %(size)s::bigint
"""

# In the order of ids, as everything that takes several events; another look may have taken it up meanwhile.
_TAKE_UP = """
    WITH free AS MATERIALIZED (
        SELECT id FROM outbox_event
        WHERE id = ANY (%(ids)s::bigint[]) AND state = 'SUPPRESSED' AND reconsider_until IS NOT NULL
        ORDER BY id FOR UPDATE
    )
    UPDATE outbox_event AS event
    SET state = 'PENDING', ended_at = NULL, reconsider_until = NULL, available_at = clock_timestamp(),
        attempts_forgiven = attempts, tried_since = NULL, lost = 0
    FROM free WHERE event.id = free.id
"""
