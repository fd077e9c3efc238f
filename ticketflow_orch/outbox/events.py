"""The events of the outbox: which types there are, and the one way to write them, in the transaction of their cause.

Who writes which, and why, is the business of the rooms above.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, Literal

from sqlalchemy import Connection, Row

from ticketflow_orch.db.engine import unless_known
from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.errors import InvalidInput

# All there are; docs/delivery.md says what each of them carries. The table outbox_event_type names them too, save what
# the database writes by itself: a role that does not own the outbox writes no others.
EVENT_TYPES = frozenset({
    "AlertResolved",
    "CheckFailed",
    "DestinationFailing",
    "DestinationGone",
    "DuplicateFiring",
    "EventCancelled",
    "EventClosed",
    "MonthSettled",
    "OutboxEventDead",
    "OutboxEventHeld",
    "OutboxEventInDoubt",
    "PaymentAfterExpiry",
    "PayoutContradicted",
    "PayoutInDoubt",
    "PayoutReferenceShared",
    "PayoutRequested",
    "PayoutsHeldForReview",
    "ReminderChanged",
    "ReminderDue",
    "ReservationExpired",
    "ReservationPaymentResolved",
    "ReservationPaymentStuck",
    "RowLeftOut",
    "RunFailed",
    "StaleClaim",
    "StatementReady",
    "WindowMissed",
    "WorkOverdue",
})  # fmt: skip
WRITTEN_BY_THE_DATABASE = frozenset({"PaymentAfterExpiry", "ReservationPaymentResolved"})
# Those that are rendered as mails, where their destination takes mails.
MAILS = frozenset({"EventCancelled", "ReminderChanged", "ReminderDue", "StatementReady"})

# Those that alert operators. They have a route of their own, and may go a second way while it fails.
ALERTS = frozenset({
    "AlertResolved",
    "CheckFailed",
    "DestinationFailing",
    "DestinationGone",
    "DuplicateFiring",
    "OutboxEventDead",
    "OutboxEventHeld",
    "OutboxEventInDoubt",
    "PayoutContradicted",
    "PayoutInDoubt",
    "PayoutReferenceShared",
    "PayoutsHeldForReview",
    "RowLeftOut",
    "RunFailed",
    "StaleClaim",
    "WindowMissed",
    "WorkOverdue",
})  # fmt: skip

# Those of which a second delivery costs money: no receiver is sent them again that may have them and may not know it.
NEVER_TWICE = frozenset({"PayoutRequested"})


class EventState(StrEnum):
    """What an event is, as its row says. Only DELIVERED and SUPPRESSED ones have ended."""

    PENDING = "PENDING"
    INFLIGHT = "INFLIGHT"
    DELIVERED = "DELIVERED"
    DEAD = "DEAD"
    IN_DOUBT = "IN_DOUBT"
    SUPPRESSED = "SUPPRESSED"
    HELD = "HELD"


def require_event_type(name: str) -> None:
    """Raise InvalidInput unless `name` is in EVENT_TYPES."""
    if name not in EVENT_TYPES:
        near = get_close_matches(name, EVENT_TYPES, n=1)
        fix = f"correct its name, perhaps to {near[0]}" if near else "name one that docs/delivery.md lists"
        raise InvalidInput(f"{name} is no type of event; {fix}.")


@dataclass(frozen=True, slots=True)
class OutboxEvent:
    """One effect on the outside world, `event_type` one of EVENT_TYPES.

    Events of one aggregate (the row that changed) are delivered in order. `dedupe_key` makes the effect happen once:
    a second event under the same key is not written, and its id is made of it, so that receivers know it again after a
    restore. So a key names what it is about by references that a restore keeps, never by a number of a sequence, which
    is another row's then. `occurred_at` is the business time, aware.
    """

    aggregate_type: str
    aggregate_id: str
    event_type: str
    payload: Mapping[str, Any]
    dedupe_key: str
    occurred_at: datetime


# What becomes of an event whose key is there already, as `appending` says.
Known = Literal["refuse", "skip", "race"]
# What `append_by` needs a statement for.
ANEW: tuple[Known, Known] = ("refuse", "skip")

# Writes an event in the transaction of the connection it is given; false when its key is there already.
Publish = Callable[[Connection, OutboxEvent], bool]


def derived_event_id(dedupe_key: str) -> str:
    """The SQL of the id of an event whose key the SQL `dedupe_key` says; the same in a restored database."""
    return sql(__file__, "derived_event_id", dedupe_key=dedupe_key)


def appending(
    event_type: str,
    source: str,
    *,
    aggregate_type: str,
    aggregate_id: str,
    payload: str,
    dedupe_key: str,
    occurred_at: str,
    event_id: str | None = None,
    known: Known = "refuse",
) -> str:
    """The SQL that writes an event of one type for each row of `source`, which is what stands behind FROM.

    `aggregate_id`, `payload` (jsonb), `dedupe_key`, `occurred_at` and `event_id` are SQL of a row; an id is derived of
    the key, unless it stands in the row. A key that is there already is refused by the database; skipped, where the
    aggregates are locked; or skipped though another transaction may write it in this moment (`race`), which costs more.

    Raises:
        ValueError: the type is not in EVENT_TYPES.
    """
    if event_type not in EVENT_TYPES:
        raise ValueError(f"{event_type!r} is not in EVENT_TYPES; no route could name it.")
    return sql(
        __file__,
        "append_each",
        event_type=event_type,
        source=source,
        aggregate_type=aggregate_type,
        aggregate_id=aggregate_id,
        payload=payload,
        dedupe_key=dedupe_key,
        occurred_at=occurred_at,
        event_id=event_id or derived_event_id(dedupe_key),
        on_conflict=_ON_CONFLICT[known],
    )


def append_by(connection: Connection, statements: Mapping[Known, str], values: Mapping[str, Any]) -> Row[Any]:
    """Execute a statement that appends events and gives one row: as it refuses known keys, or else as it skips them.

    Hardly any key is known, and to skip them costs a tenth more for each event that is new.
    """

    def executed(known: Known) -> Row[Any]:
        return connection.exec_driver_sql(statements[known], dict(values)).one()

    return unless_known(connection, lambda: executed("refuse"), lambda: executed("skip"))


def append(connection: Connection, event: OutboxEvent) -> bool:
    """Write `event` in the caller's transaction; False when its key is there already.

    To be called while the aggregate's row is locked, so that the order of ids is the order of commits.

    Raises:
        ValueError: its type is not in EVENT_TYPES.
    """
    if event.event_type not in EVENT_TYPES:
        raise ValueError(f"{event.event_type!r} is not in EVENT_TYPES; no route could name it.")
    written = connection.exec_driver_sql(
        _APPEND,
        {
            "aggregate_type": event.aggregate_type,
            "aggregate_id": event.aggregate_id,
            "event_type": event.event_type,
            "payload": json.dumps(event.payload),
            "dedupe_key": event.dedupe_key,
            "occurred_at": event.occurred_at,
        },
    ).rowcount
    return written == 1


# Two at once meet at the id, which is made of the key, before they meet at the key; so a race takes any conflict.
_ON_CONFLICT: Mapping[Known, str] = {
    "refuse": "",
    "skip": "ON CONFLICT (dedupe_key) DO NOTHING",
    "race": "ON CONFLICT DO NOTHING",
}

_APPEND = sql(__file__, "append", event_id=derived_event_id("%(dedupe_key)s::text"))
