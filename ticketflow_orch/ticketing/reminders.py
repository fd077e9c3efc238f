"""Reminders before an event: one per reservation, kind and local date of the event, however often anybody looks.

"24 hours before" means elapsed hours. The date in the key is the event's own local date: an event that moves to another
date reminds again, one that moves by an hour does not. Of several kinds that are due at once the nearest is sent. When
a kind is due is in `reminder_leads`, mails about a change are in `event_changes`, all of a window is in `reminding`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from enum import StrEnum
from functools import cache

from sqlalchemy import Connection, Engine

from ticketflow_orch.db.engine import transaction, unless_known
from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.jobs import bad_rows
from ticketflow_orch.jobs.bad_rows import TRIED_EVERY, JobMemory, any_to_try, is_left_out
from ticketflow_orch.jobs.batches import BadRow, ChunkedWork, Taken, Wanted, as_array
from ticketflow_orch.jobs.intervals import SEND_REMINDERS
from ticketflow_orch.months import day_window, known_zones, unknown_zone, zone
from ticketflow_orch.outbox.events import appending, derived_event_id
from ticketflow_orch.settings import Settings
from ticketflow_orch.ticketing.reminder_leads import Held, Leads, agree_on, read_leads


@dataclass(frozen=True, slots=True)
class ReminderRules:
    """`kinds`: how long before the start each kind reminds. `quiet`: nobody is reminded so soon after buying.

    `mail_from`: what was due before is loaded history and reminds nobody; `now` is the business clock (aware).
    """

    now: datetime
    kinds: Mapping[str, timedelta]
    quiet: timedelta = timedelta(hours=2)
    mail_from: datetime | None = None
    chunk_size: int = 10_000
    # How far back a start is still looked at, to show reminders that were missed.
    missed_horizon: timedelta = timedelta(days=2)

    @classmethod
    def configured(cls, settings: Settings, now: datetime) -> ReminderRules:
        """The rules that `settings` make, at the instant `now`."""
        return cls(now, settings.reminder_kinds, settings.reminder_quiet, settings.mail_from)

    @property
    def parameters(self) -> dict[str, object]:
        """What every question about reminders binds."""
        return {
            "now": self.now,
            "quiet": self.quiet,
            "quiet_since": self.now - self.quiet,
            "within_a_day": self.now + timedelta(days=1),
        }


class ReminderState(StrEnum):
    """What was decided about a reminder; the words of `reminder.state`."""

    QUEUED = "QUEUED"
    SKIPPED = "SKIPPED"
    MISSED = "MISSED"


@dataclass(frozen=True, slots=True)
class Reminded:
    """How many reminders were queued, missed, or skipped.

    Skipped: bought too late, due before their kind was there, or due together with a nearer one, which is sent.
    """

    queued: int
    skipped: int
    missed: int
    bad: tuple[BadRow, ...]


@dataclass(frozen=True, slots=True)
class Told:
    """What the mail about a reminder (`reference`, `kind`, `event_date`) says of the event."""

    reference: str
    kind: str
    event_date: date
    starts_at: datetime
    venue: str | None


def note_told(connection: Connection, told: Sequence[Told]) -> None:
    """Note with each reminder what its mail says, before it goes: by it is judged whether a change needs a mail."""
    if told:
        values = {
            "references": [one.reference for one in told],
            "kinds": [one.kind for one in told],
            "dates": [one.event_date for one in told],
            "starts": [one.starts_at for one in told],
            "venues": [one.venue for one in told],
        }
        connection.exec_driver_sql(_NOTE_TOLD, values)


def send_reminders(engine: Engine, rules: ReminderRules) -> Reminded:
    """Queue every reminder that is due, in chunks of reservations: its row and its outbox event in one statement.

    Only CONFIRMED reservations of OPEN events that have not begun are reminded. What no run came to in time is caught
    up until the event starts, and is MISSED after that, where it can be seen. Events in a zone that is unknown
    are left out as bad rows: without a zone they have no local date to remind of.

    Raises:
        ManyBadRowsError: more reservations fail than are looked for one by one; all others are reminded.
    """
    totals = Counter[str]()
    works: list[ChunkedWork[Counter[str]]] = []
    nowhere: dict[int | str, BadRow] = {}
    nearer: list[str] = []
    for kind, lead in _nearest_first(rules):
        with transaction(engine) as connection:
            leads = agree_on(connection, kind, lead, rules.now)
            timezones = connection.exec_driver_sql(_TIMEZONES_WITHIN, _span(rules, leads.lead)).scalars().all()
            nowhere |= {row.id: row for row in _in_unknown_zones(connection, rules, leads.lead, timezones)}
        one = _KindOfReminder(leads, tuple(nearer), rules, timezones)
        nearer.append(kind)
        work = ChunkedWork(
            engine, one.take, one.apply, rules.chunk_size, name=_RESERVATION_NAME,
            memory=JobMemory(SEND_REMINDERS.name, rules.now, _scope(kind)),
        )  # fmt: skip
        works.append(work)
        totals.update(sum(work.run(), Counter[str]()))
    with transaction(engine) as connection:
        for row in nowhere.values():
            bad_rows.note(connection, SEND_REMINDERS.name, row, rules.now)
        bad_rows.end_others(connection, SEND_REMINDERS.name, tuple(nowhere.values()), scope=_EVENT)
        connection.exec_driver_sql(_END_OF_KINDS, {"scopes": [_EVENT, CHANGES, *map(_scope, rules.kinds)]})
    for work in works:
        work.must_be_few()
    bad = (*(row for work in works for row in work.bad), *nowhere.values())
    return Reminded(
        queued=totals[ReminderState.QUEUED],
        skipped=totals[ReminderState.SKIPPED],
        missed=totals[ReminderState.MISSED],
        bad=bad,
    )


def reminders_are_due(connection: Connection, rules: ReminderRules) -> bool:
    """Whether `send_reminders` would write or leave out anything: reads the events within the horizon, nothing else.

    A kind that is not known yet counts as due: what comes first must not find it newly enabled. So does an event in an
    unknown zone: nobody would learn of one that no other reminder comes along with. What is left out is not due, but
    is to be tried now and then.
    """
    if connection.exec_driver_sql(_ANY_TO_TRY, {"tried_before": rules.now - TRIED_EVERY}).scalar_one():
        return True
    for kind, lead in _nearest_first(rules):
        leads = read_leads(connection, kind, rules.now)
        if (
            leads is None
            or leads.lead != lead
            or _undecided(connection, rules, leads, _of_undecided("is_undecided", leads.due_at))
        ):
            return True
    return False


def due_reminders(connection: Connection, rules: ReminderRules) -> dict[str, int]:
    """About how many reservations `send_reminders` would decide now, by kind; nothing is written or locked."""
    found: dict[str, int] = {}
    for kind, lead in _nearest_first(rules):
        # Before its first run a kind is due for nobody.
        leads = read_leads(connection, kind, rules.now) or Leads(kind, [Held(lead, rules.now)])
        number = _undecided(connection, rules, leads, _of_undecided("undecided_count", leads.due_at))
        found[kind] = number if isinstance(number, int) else 0
    return found


def oldest_due_reminder(connection: Connection, rules: ReminderRules) -> datetime | None:
    """Since when the reminder that has waited longest has been due, if any is; what is left out has none."""
    found = []
    for kind, lead in _nearest_first(rules):
        known = read_leads(connection, kind, rules.now)
        # Before its first run a kind is due for nobody.
        leads = known or Leads(kind, [Held(lead, rules.now)])
        found.append(_undecided(connection, rules, leads, _of_undecided("oldest_undecided", leads.due_at)))
    return min((since for since in found if isinstance(since, datetime)), default=None)


def _nearest_first(rules: ReminderRules) -> list[tuple[str, timedelta]]:
    """The kinds, those first that remind last: whom they remind is reminded by no other that is due with them."""
    return sorted(rules.kinds.items(), key=lambda kind: (kind[1], kind[0]))


def _undecided(connection: Connection, rules: ReminderRules, leads: Leads, question: str) -> object:
    span = _span(rules, leads.lead)
    timezones = connection.exec_driver_sql(_TIMEZONES_WITHIN, span).scalars().all()
    if not timezones:
        return None
    values = {
        "kind": leads.kind,
        "scope": _scope(leads.kind),
        **rules.parameters,
        "any_left_out": not known_zones().issuperset(timezones),
        **leads.parameters(rules.mail_from),
        **_local_days(rules, leads.lead, timezones),
    }
    return connection.exec_driver_sql(question, values | span).scalar_one()


def _span(rules: ReminderRules, lead: timedelta) -> dict[str, datetime]:
    return {"from_start": rules.now - rules.missed_horizon, "to_start": rules.now + lead}


def _scope(kind: str) -> str:
    return f"{kind}:"


def _in_unknown_zones(
    connection: Connection, rules: ReminderRules, lead: timedelta, timezones: Sequence[str]
) -> list[BadRow]:
    unknown = sorted(set(timezones) - known_zones())
    rows = connection.exec_driver_sql(_EVENTS_IN_ZONES, _span(rules, lead) | {"timezones": unknown}) if unknown else ()
    return [BadRow(f"{_EVENT}{row.id}", unknown_zone(row.timezone), row.external_ref) for row in rows]


def _local_days(rules: ReminderRules, lead: timedelta, timezones: Sequence[str]) -> dict[str, object]:
    """What `_LOCAL_DAY` binds: the days in `timezones` that an event within the horizon can start on.

    Unknown zones have none, so that the events in them stay undecided.
    """
    days = []
    for timezone in known_zones().intersection(timezones):
        day = (rules.now - rules.missed_horizon).astimezone(zone(timezone)).date()
        last = (rules.now + lead).astimezone(zone(timezone)).date()
        while day <= last:
            days.append((timezone, day, day_window(day, timezone)))
            day += timedelta(days=1)
    return {
        "timezones": [timezone for timezone, _, _ in days],
        "days": [day for _, day, _ in days],
        "starts": [window.starts_at for _, _, window in days],
        "ends": [window.ends_at for _, _, window in days],
    }


@dataclass(frozen=True, slots=True)
class _KindOfReminder:
    """The chunks of one kind: reservations by the start of their event, of events in these `timezones`."""

    leads: Leads
    nearer: Sequence[str]
    rules: ReminderRules
    timezones: Sequence[str]

    def take(self, connection: Connection, wanted: Wanted) -> Taken:
        """The next reservations of events that start within the lead, or have started lately."""
        span = _span(self.rules, self.leads.lead)
        if wanted.only is not None:
            row = connection.exec_driver_sql(_THESE_RESERVATIONS, span | {"only": as_array(wanted.only)}).one()
        else:
            place = wanted.after or (span["from_start"], _LARGEST_ID, 0)
            behind = dict(zip(("from_start", "from_event", "from_reservation"), place, strict=True))
            values = {"size": wanted.size, "left_out": list(wanted.left_out)}
            row = connection.exec_driver_sql(_NEXT_RESERVATIONS, span | values | behind).one()
        return Taken(row.ids, (row.starts_at, row.event_id, row.ids[-1])) if row.ids else Taken((), None)

    def apply(self, connection: Connection, ids: Sequence[int]) -> Counter[str]:
        """Write the reminders of these reservations and queue those that are to be sent."""

        def decide() -> Counter[str]:
            return self._decide(connection, ids)

        # Another run may decide about some of them at the same time; they are passed over by the second look.
        return unless_known(connection, decide, decide)

    def _decide(self, connection: Connection, ids: Sequence[int]) -> Counter[str]:
        rows = connection.exec_driver_sql(
            _remind(self.leads.due_at),
            {
                "ids": as_array(ids),
                "kind": self.leads.kind,
                "nearer": list(self.nearer),
                **self.rules.parameters,
                **self.leads.parameters(self.rules.mail_from),
                **_local_days(self.rules, self.leads.lead, self.timezones),
            },
        )
        return Counter({row.state: row.reminders for row in rows})


# What the keys of events begin with among the rows that are left out.
_EVENT = "event "
# And those of events about whose change no mail can be written.
CHANGES = "change of event "
_LARGEST_ID = 2**63 - 1

_RESERVATION_NAME = "SELECT public_ref FROM reservation WHERE id = %(id)s::bigint"

_NOTE_TOLD = sql(__file__, "note_told")

_END_OF_KINDS = sql(__file__, "end_of_kinds", job=SEND_REMINDERS.name)

# A condition on `event`: it starts within the horizon; binds what `_span` says.
_WITHIN = "starts_at > %(from_start)s::timestamptz AND starts_at <= %(to_start)s::timestamptz"

_NEXT_RESERVATIONS = sql(__file__, "next_reservations")

_THESE_RESERVATIONS = sql(__file__, "these_reservations", within=_WITHIN)

_TIMEZONES_WITHIN = sql(__file__, "timezones_within", within=_WITHIN)

_EVENTS_IN_ZONES = sql(__file__, "events_in_zones", within=_WITHIN)

_ANY_TO_TRY = sql(__file__, "any_to_try", any_to_try=any_to_try(SEND_REMINDERS.name))

_LEFT_OUT = is_left_out(SEND_REMINDERS.name, "%(scope)s::text || reservation.id")

_LOCAL_DAY = sql(__file__, "local_day")

# SQL of when a reservation was bought. A ticket that is to be bought in days is a mistake of the application, and would
# keep its buyer unreminded until the start; within a day it may be the hour of another zone, and comes.
_BOUGHT = """
    CASE WHEN coalesce(confirmed_at, created_at) <= %(within_a_day)s::timestamptz
        THEN coalesce(confirmed_at, created_at) ELSE '-infinity' END
"""

# A condition on what `coming` names: its reminders may have to be decided now.
_MAY_BE_DUE = """
    (event.status = 'OPEN' OR event.status = 'CLOSED' AND starts_at <= %(now)s::timestamptz)
        AND (due_at IS NULL OR due_at <= %(now)s::timestamptz OR starts_at <= %(now)s::timestamptz)
"""

# Each reminder is an aggregate of its own: one that is in doubt holds back no other of its reservation.
_REFERENCE = "public_ref || ':' || %(kind)s::text || ':' || to_char(event_date, 'YYYY-MM-DD')"

_KEY = "'ReminderDue:' || reference"
# Of the mail about the `number`th change to one who was reminded.
CHANGE_KEY = """
    'ReminderChanged:' || public_ref || ':' || reminder.kind || ':' || to_char(reminder.event_date, 'YYYY-MM-DD')
        || ':' || number
"""

_QUEUE_EVENTS = appending(
    "ReminderDue",
    "decided WHERE state = 'QUEUED' ORDER BY id",
    aggregate_type="reminder",
    aggregate_id="reference",
    payload="""jsonb_build_object('ref', public_ref, 'event_id', public_id, 'kind', %(kind)s::text,
        'event_date', event_date, 'starts_at', starts_at)""",
    dedupe_key=_KEY,
    occurred_at="%(now)s::timestamptz",
    event_id="outbox_event_id",
)


# The statements below are made of these parts, once for each SQL of when a kind is due, of which there are two.
@cache
def _coming(due_at: str) -> str:
    return sql(__file__, "coming", due_at=due_at)


@cache
def _of_undecided(question: str, due_at: str) -> str:
    undecided = sql(
        __file__, "undecided", coming=_coming(due_at), may_be_due=_MAY_BE_DUE, bought=_BOUGHT, within=_WITHIN
    )
    return sql(__file__, question, local_day=_LOCAL_DAY, undecided=undecided, bought=_BOUGHT, left_out=_LEFT_OUT)


@cache
def _remind(due_at: str) -> str:
    return sql(
        __file__,
        "remind",
        local_day=_LOCAL_DAY,
        bought=_BOUGHT,
        coming=_coming(due_at),
        may_be_due=_MAY_BE_DUE,
        reference=_REFERENCE,
        event_id=derived_event_id(_KEY),
        queue_events=_QUEUE_EVENTS,
    )
