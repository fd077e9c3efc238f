"""What changed about an event, and who has to be told: whom a mail told otherwise, and who holds a ticket for nothing.

The database writes each change down, whoever made it. It is looked at until everybody who has to be told is, and then
never again. Nobody is told twice of one change, and nobody who was not told anything before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, Engine, Row, TextClause, text
from sqlalchemy.exc import DBAPIError

from ticketflow_orch.db.engine import is_row_fault, transaction
from ticketflow_orch.db.errors import in_words
from ticketflow_orch.jobs import bad_rows
from ticketflow_orch.jobs.batches import BadRow
from ticketflow_orch.months import known_zones, zone
from ticketflow_orch.outbox.events import appending
from ticketflow_orch.ticketing.reminders import CHANGE_KEY, CHANGES, REMINDING, ReminderRules

# So long before the start a change is told at once; before that by the kinds that are still to remind, if any is.
_LAST_DAY = timedelta(hours=24)
# An application that cancels an event may cancel what was sold for it in the same breath.
_SAME_BREATH = timedelta(minutes=10)
_FORGOTTEN = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Changes:
    """How many mails were queued: of a change to who was told otherwise, and that an event is cancelled.

    `bad`: the events of which nobody can be told, because of what is in their rows.
    """

    changed: int
    cancelled: int
    bad: tuple[BadRow, ...] = ()


def changes_are_due(connection: Connection) -> bool:
    """Whether anything about an event has changed that nobody has looked at yet; one index probe."""
    return bool(connection.execute(_ARE_DUE).scalar_one())


def tell_changes(engine: Engine, rules: ReminderRules, *, cancellations: bool) -> Changes:
    """Queue the mails about what changed, `rules.chunk_size` reservations a transaction.

    A change of the hour or the place, on the date that was told, is told to who was reminded where it comes inside the
    last day, or no reminder would tell it in time. What was decided about reminders of an event that moved, but for
    those that were queued, is decided anew. `cancellations`: whether a cancelled event that has not begun is told.
    """
    told = {"MOVED": 0, "CANCELLED": 0}
    bad: list[BadRow] = []
    after = 0
    while True:
        change = None
        try:
            with transaction(engine) as connection:
                change = connection.execute(_NEXT, {"after": after}).one_or_none()
                if change is None:
                    break
                queued, done = _look_at(connection, change, rules, cancellations=cancellations)
                if done:
                    connection.execute(_LOOKED_AT, {"id": change.id})
        except DBAPIError as error:
            if change is None or not is_row_fault(error):
                raise
            bad.append(BadRow(f"{CHANGES}{change.event_id}", in_words(error), change.external_ref))
            after = change.id
        else:
            told[change.what] += queued
            if done or not queued:
                # What is being sent at this moment is looked at again by the next run.
                after = change.id
    with transaction(engine) as connection:
        for row in bad:
            bad_rows.note(connection, REMINDING, row, rules.now)
        bad_rows.end_others(connection, REMINDING, bad, scope=CHANGES)
        connection.execute(_FORGET, {"age": _FORGOTTEN})
    return Changes(told["MOVED"], told["CANCELLED"], tuple(bad))


def _look_at(
    connection: Connection, change: Row[Any], rules: ReminderRules, *, cancellations: bool
) -> tuple[int, bool]:
    """How many mails were queued about `change`, and whether all were."""
    values: dict[str, object] = {"event": change.event_id, "now": rules.now, "size": rules.chunk_size}
    if change.what == "MOVED":
        connection.execute(_UNDECIDE, values)
    if change.starts_at <= rules.now:
        return 0, True
    if change.what == "CANCELLED":
        began = rules.mail_from is None or rules.now >= rules.mail_from
        if not cancellations or change.status != "CANCELLED" or not began:
            return 0, True
        queued = _queued(connection, values | {"since": change.changed_at - _SAME_BREATH}, _CANCELLED)
        return queued, queued < rules.chunk_size
    # In a zone that is unknown there is no date; who is reminded there is reminded when it is known.
    if change.status != "OPEN" or change.timezone not in known_zones():
        return 0, True
    day = change.starts_at.astimezone(zone(change.timezone)).date()
    coming = [kind for kind, lead in rules.kinds.items() if change.starts_at - lead > rules.now]
    values |= {"event_date": day, "coming": coming, "last_day": rules.now + _LAST_DAY}
    queued = _queued(connection, values, _CHANGED)
    return queued, queued < rules.chunk_size and not connection.execute(_ON_THE_WAY, values).scalar_one()


def _queued(connection: Connection, values: Mapping[str, object], statement: TextClause) -> int:
    return int(connection.execute(statement, values).scalar_one())


_ARE_DUE = text("SELECT EXISTS (SELECT FROM event_change WHERE looked_at IS NULL)")

_NEXT = text("""
    SELECT change.id, event_id, external_ref, what, changed_at, status, starts_at, timezone
    FROM event_change AS change JOIN event ON event.id = event_id
    WHERE looked_at IS NULL AND change.id > CAST(:after AS bigint)
    ORDER BY change.id LIMIT 1 FOR UPDATE OF change SKIP LOCKED
""")

_LOOKED_AT = text("UPDATE event_change SET looked_at = clock_timestamp() WHERE id = :id")

_FORGET = text("DELETE FROM event_change WHERE looked_at < clock_timestamp() - CAST(:age AS interval)")

_UNDECIDE = text("SELECT reminders_undecided(CAST(:event AS bigint))")

_QUEUE_CHANGES = appending(
    "ReminderChanged",
    "reminder JOIN otherwise USING (id) ORDER BY id",
    aggregate_type="reminder",
    aggregate_id=f"substr({CHANGE_KEY}, length('ReminderChanged:') + 1)",
    payload="""jsonb_build_object('ref', public_ref, 'event_id', public_id, 'kind', kind, 'event_date', event_date,
        'starts_at', starts_at, 'venue', venue, 'number', number)""",
    dedupe_key=CHANGE_KEY,
    occurred_at="CAST(:now AS timestamptz)",
)

# Of the reminders of a reservation the last one counts: it has told it something, or is about to tell what is so now,
# which one of a date on which the event is no more never will. The one of the date on which the event is (`today`) is
# the one that a notice belongs to; where it has not gone, it tells by itself. What a notice says counts as told by all
# of them. Whom another run that looks at the same has told meanwhile is told no second time.
_CHANGED = text(f"""
    WITH reminded AS MATERIALIZED (
        SELECT reminder.id, reservation_id, event_date, told_starts_at, told_venue, changes_told,
            told_starts_at IS NOT NULL AND (outbox_event.state = 'DELIVERED' OR doubtful_since IS NOT NULL) AS is_told
        FROM reservation
        JOIN reminder ON reservation_id = reservation.id AND reminder.state = 'QUEUED'
        JOIN outbox_event ON outbox_event.event_id = outbox_event_id
            AND (outbox_event.state NOT IN ('DEAD', 'SUPPRESSED') OR doubtful_since IS NOT NULL)
        WHERE reservation.event_id = CAST(:event AS bigint) AND reservation.status = 'CONFIRMED'
    ), last AS (
        SELECT DISTINCT ON (reservation_id) * FROM reminded
        WHERE is_told OR event_date = CAST(:event_date AS date) ORDER BY reservation_id, id DESC
    ), today AS (
        SELECT DISTINCT ON (reservation_id) reservation_id, id, changes_told FROM reminded
        WHERE is_told AND event_date = CAST(:event_date AS date) ORDER BY reservation_id, id DESC
    ), otherwise AS MATERIALIZED (
        SELECT today.id, today.changes_told, last.reservation_id, public_ref, public_id, starts_at, venue
        FROM last
        JOIN today USING (reservation_id)
        JOIN reservation ON reservation.id = last.reservation_id
        JOIN event ON event.id = reservation.event_id
        WHERE is_told AND (told_starts_at, coalesce(told_venue, '')) <> (starts_at, coalesce(venue, ''))
            AND (starts_at <= CAST(:last_day AS timestamptz) OR NOT EXISTS (
                SELECT FROM unnest(CAST(:coming AS text[])) AS coming (kind)
                LEFT JOIN reminder AS own ON own.reservation_id = last.reservation_id AND own.kind = coming.kind
                    AND own.event_date = CAST(:event_date AS date)
                WHERE own.id IS NULL))
        ORDER BY today.id LIMIT CAST(:size AS bigint)
    ), told AS (
        UPDATE reminder AS one
        SET changes_told = one.changes_told + CAST(one.id = otherwise.id AS integer),
            told_starts_at = otherwise.starts_at, told_venue = otherwise.venue
        FROM otherwise
        WHERE one.reservation_id = otherwise.reservation_id AND one.told_starts_at IS NOT NULL
            AND (one.id <> otherwise.id OR one.changes_told = otherwise.changes_told)
        RETURNING one.id, one.kind, one.event_date, one.changes_told AS number
    ), reminder AS (
        SELECT * FROM told WHERE id IN (SELECT id FROM otherwise)
    ), queued AS ({_QUEUE_CHANGES})
    SELECT count(*) FROM reminder
""")

# A reminder that is being sent may say what was so before, also where nobody has noted yet what it says; whether it
# reached anybody is known when that has ended.
_ON_THE_WAY = text("""
    SELECT EXISTS (
        SELECT FROM reservation
        JOIN reminder ON reservation_id = reservation.id AND reminder.state = 'QUEUED'
        JOIN outbox_event ON outbox_event.event_id = outbox_event_id AND outbox_event.state = 'INFLIGHT'
        JOIN event ON event.id = reservation.event_id
        WHERE reservation.event_id = CAST(:event AS bigint) AND reservation.status = 'CONFIRMED'
            AND (told_starts_at IS NULL
                OR (told_starts_at, coalesce(told_venue, '')) <> (starts_at, coalesce(venue, ''))))
""")

_CANCELLED_KEY = "'EventCancelled:' || public_ref"
_QUEUE_CANCELLATIONS = appending(
    "EventCancelled",
    "holders",
    aggregate_type="cancellation",
    aggregate_id="public_ref",
    payload="jsonb_build_object('ref', public_ref, 'event_id', public_id, 'starts_at', starts_at)",
    dedupe_key=_CANCELLED_KEY,
    occurred_at="CAST(:now AS timestamptz)",
    known="skip",
)

_CANCELLED = text(f"""
    WITH holders AS MATERIALIZED (
        SELECT public_ref, public_id, starts_at
        FROM reservation JOIN event ON event.id = event_id
        WHERE event_id = CAST(:event AS bigint) AND confirmed_at IS NOT NULL
            AND (reservation.status = 'CONFIRMED'
                OR reservation.status = 'CANCELLED' AND cancelled_at >= CAST(:since AS timestamptz))
            AND NOT EXISTS (SELECT FROM outbox_event WHERE dedupe_key = {_CANCELLED_KEY})
        ORDER BY reservation.id LIMIT CAST(:size AS bigint)
    ), queued AS ({_QUEUE_CANCELLATIONS})
    SELECT count(*) FROM holders
""")
