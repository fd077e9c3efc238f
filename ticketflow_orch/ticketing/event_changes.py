"""What changed about an event, and who gets a mail: buyers whose reminder said otherwise, and those of a cancelled one.

The database records each change, no matter who made it. It is looked at until all who need a mail have one, and then
never again. Nobody is mailed twice about one change, and nobody who had no mail before. Reminders themselves are in
`reminders`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Engine, Row
from sqlalchemy.exc import DBAPIError

from ticketflow_orch.db.engine import transaction
from ticketflow_orch.db.errors import in_words, is_row_fault
from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.jobs import bad_rows
from ticketflow_orch.jobs.batches import BadRow
from ticketflow_orch.jobs.intervals import SEND_REMINDERS
from ticketflow_orch.months import known_zones, zone
from ticketflow_orch.outbox.events import appending
from ticketflow_orch.ticketing.reminders import CHANGE_KEY, CHANGES, ReminderRules

# So long before the start a change is mailed at once; before that a reminder that is still to come says it, if any is.
_LAST_DAY = timedelta(hours=24)
# An application that cancels an event may cancel what was sold for it in the same breath.
_SAME_BREATH = timedelta(minutes=10)
_FORGOTTEN = timedelta(days=7)


class ChangeKind(StrEnum):
    """What a change of an event is; the words of `event_change.what`."""

    MOVED = "MOVED"
    CANCELLED = "CANCELLED"


@dataclass(frozen=True, slots=True)
class Changes:
    """How many mails were queued: about a change, to those who were reminded otherwise, and that an event is cancelled.

    `bad`: the events about which none can be written, because of what is in their rows.
    """

    changed: int
    cancelled: int
    bad: tuple[BadRow, ...] = ()


def changes_are_due(connection: Connection) -> bool:
    """Whether anything about an event has changed that nobody has looked at yet; one index probe."""
    return bool(connection.exec_driver_sql(_ARE_DUE).scalar_one())


def tell_changes(engine: Engine, rules: ReminderRules, *, cancellations: bool) -> Changes:
    """Queue the mails about what changed, `rules.chunk_size` reservations a transaction.

    A change of the hour or the place, on the date that the reminder said, is mailed to those who were reminded where it
    comes inside the last day, or no reminder would say it in time. What was decided about reminders of an event that
    moved, but for those that were queued, is decided anew. `cancellations`: whether mails are sent about a cancelled
    event that has not begun.
    """
    mails = dict.fromkeys(ChangeKind, 0)
    bad: list[BadRow] = []
    after = 0
    while True:
        change = None
        try:
            with transaction(engine) as connection:
                change = connection.exec_driver_sql(_NEXT, {"after": after}).one_or_none()
                if change is None:
                    break
                queued, done = _look_at(connection, change, rules, cancellations=cancellations)
                if done:
                    connection.exec_driver_sql(_LOOKED_AT, {"id": change.id})
        except DBAPIError as error:
            if change is None or not is_row_fault(error):
                raise
            bad.append(BadRow(f"{CHANGES}{change.event_id}", in_words(error), change.external_ref))
            after = change.id
        else:
            mails[ChangeKind(change.what)] += queued
            if done or not queued:
                # What is being sent at this moment is looked at again by the next run.
                after = change.id
    with transaction(engine) as connection:
        for row in bad:
            bad_rows.note(connection, SEND_REMINDERS.name, row, rules.now)
        bad_rows.end_others(connection, SEND_REMINDERS.name, bad, scope=CHANGES)
        connection.exec_driver_sql(_FORGET, {"age": _FORGOTTEN})
    return Changes(changed=mails[ChangeKind.MOVED], cancelled=mails[ChangeKind.CANCELLED], bad=tuple(bad))


def _look_at(
    connection: Connection, change: Row[Any], rules: ReminderRules, *, cancellations: bool
) -> tuple[int, bool]:
    """How many mails were queued about `change`, and whether all were."""
    values: dict[str, object] = {"event": change.event_id, "now": rules.now, "size": rules.chunk_size}
    if change.what == ChangeKind.MOVED:
        connection.exec_driver_sql(_UNDECIDE, values)
    if change.starts_at <= rules.now:
        return 0, True
    if change.what == ChangeKind.CANCELLED:
        began = rules.mail_from is None or rules.now >= rules.mail_from
        if not cancellations or change.status != "CANCELLED" or not began:
            return 0, True
        queued = _queued(connection, values | {"since": change.changed_at - _SAME_BREATH}, _CANCELLED)
        return queued, queued < rules.chunk_size
    # In a zone that is unknown there is no date; buyers are reminded there when it is known.
    if change.status != "OPEN" or change.timezone not in known_zones():
        return 0, True
    day = change.starts_at.astimezone(zone(change.timezone)).date()
    coming = [kind for kind, lead in rules.kinds.items() if change.starts_at - lead > rules.now]
    values |= {"event_date": day, "coming": coming, "last_day": rules.now + _LAST_DAY}
    queued = _queued(connection, values, _CHANGED)
    return queued, queued < rules.chunk_size and not connection.exec_driver_sql(_ON_THE_WAY, values).scalar_one()


def _queued(connection: Connection, values: Mapping[str, object], statement: str) -> int:
    return int(connection.exec_driver_sql(statement, values).scalar_one())


_ARE_DUE = "SELECT EXISTS (SELECT FROM event_change WHERE looked_at IS NULL)"

_NEXT = """
    SELECT change.id, event_id, external_ref, what, changed_at, status, starts_at, timezone
    FROM event_change AS change JOIN event ON event.id = event_id
    WHERE looked_at IS NULL AND change.id > %(after)s::bigint
    ORDER BY change.id LIMIT 1 FOR UPDATE OF change SKIP LOCKED
"""

_LOOKED_AT = "UPDATE event_change SET looked_at = clock_timestamp() WHERE id = %(id)s"

_FORGET = "DELETE FROM event_change WHERE looked_at < clock_timestamp() - %(age)s::interval"

_UNDECIDE = "SELECT reminders_undecided(%(event)s::bigint)"

_QUEUE_CHANGES = appending(
    "ReminderChanged",
    "reminder JOIN otherwise USING (id) ORDER BY id",
    aggregate_type="reminder",
    aggregate_id=f"substr({CHANGE_KEY}, length('ReminderChanged:') + 1)",
    payload="""jsonb_build_object('ref', public_ref, 'event_id', public_id, 'kind', kind, 'event_date', event_date,
        'starts_at', starts_at, 'venue', venue, 'number', number)""",
    dedupe_key=CHANGE_KEY,
    occurred_at="%(now)s::timestamptz",
)

_CHANGED = sql(__file__, "changed", queue_changes=_QUEUE_CHANGES)

_ON_THE_WAY = sql(__file__, "on_the_way")

_CANCELLED_KEY = "'EventCancelled:' || public_ref"
_QUEUE_CANCELLATIONS = appending(
    "EventCancelled",
    "holders",
    aggregate_type="cancellation",
    aggregate_id="public_ref",
    payload="jsonb_build_object('ref', public_ref, 'event_id', public_id, 'starts_at', starts_at)",
    dedupe_key=_CANCELLED_KEY,
    occurred_at="%(now)s::timestamptz",
    known="race",
)

_CANCELLED = sql(__file__, "cancelled", cancelled_key=_CANCELLED_KEY, queue_cancellations=_QUEUE_CANCELLATIONS)
