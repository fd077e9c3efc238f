"""Reminders before an event: one per reservation, kind and local date of the event, however often anybody looks.

"24 hours before" means elapsed hours. The date in the key is the event's own local date: an event that moves to another
date reminds again, one that moves by an hour does not. Of several kinds that are due at once the nearest is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import cache

from sqlalchemy import Connection, Engine

from ticketflow_orch.db.engine import transaction
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
    """Note with each reminder what its mail says, before it goes: by it is judged whether a change has to be told."""
    if told:
        values = {
            "references": [one.reference for one in told],
            "kinds": [one.kind for one in told],
            "dates": [one.event_date for one in told],
            "starts": [one.starts_at for one in told],
            "venues": [one.venue for one in told],
        }
        connection.exec_driver_sql(_TOLD, values)


def send_reminders(engine: Engine, rules: ReminderRules) -> Reminded:
    """Queue every reminder that is due, in chunks of reservations: its row and its outbox event in one statement.

    Only CONFIRMED reservations of OPEN events that have not begun are reminded. What nobody looked at in time is
    caught up until the event starts, and is MISSED after that, where it can be seen. Events in a zone that is unknown
    are left out as bad rows: without a zone they have no local date to remind of.

    Raises:
        ManyBadRowsError: more reservations fail than are looked for one by one; all others are reminded.
    """
    totals = {"QUEUED": 0, "SKIPPED": 0, "MISSED": 0}
    works: list[ChunkedWork[dict[str, int]]] = []
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
        for effect in work.run():
            for state, reminders in effect.items():
                totals[state] += reminders
    with transaction(engine) as connection:
        for row in nowhere.values():
            bad_rows.note(connection, SEND_REMINDERS.name, row, rules.now)
        bad_rows.end_others(connection, SEND_REMINDERS.name, tuple(nowhere.values()), scope=_EVENT)
        connection.exec_driver_sql(_END_OF_KINDS, {"scopes": [_EVENT, CHANGES, *map(_scope, rules.kinds)]})
    for work in works:
        work.must_be_few()
    bad = (*(row for work in works for row in work.bad), *nowhere.values())
    return Reminded(totals["QUEUED"], totals["SKIPPED"], totals["MISSED"], bad)


def reminders_are_due(connection: Connection, rules: ReminderRules) -> bool:
    """Whether `send_reminders` would write or leave out anything: reads the events within the horizon, nothing else.

    A kind that is not known yet counts as due: what comes first must not find it newly enabled. So does an event in an
    unknown zone: nobody would be told of one that no other reminder comes along with. What is left out is not due, but
    is to be tried now and then.
    """
    if connection.exec_driver_sql(_ANY_TO_TRY, {"tried_before": rules.now - TRIED_EVERY}).scalar_one():
        return True
    for kind, lead in _nearest_first(rules):
        leads = read_leads(connection, kind, rules.now)
        if leads is None or leads.lead != lead or _undecided(connection, rules, leads, _is_undecided(leads.due_at)):
            return True
    return False


def due_reminders(connection: Connection, rules: ReminderRules) -> dict[str, int]:
    """About how many reservations `send_reminders` would decide now, by kind; nothing is written or locked."""
    found: dict[str, int] = {}
    for kind, lead in _nearest_first(rules):
        # Before its first run a kind is due for nobody.
        leads = read_leads(connection, kind, rules.now) or Leads(kind, [Held(lead, rules.now)])
        number = _undecided(connection, rules, leads, _undecided_count(leads.due_at))
        found[kind] = number if isinstance(number, int) else 0
    return found


def oldest_due_reminder(connection: Connection, rules: ReminderRules) -> datetime | None:
    """Since when the reminder that has waited longest has been due, if any is; what is left out has none."""
    found = []
    for kind, lead in _nearest_first(rules):
        known = read_leads(connection, kind, rules.now)
        # Before its first run a kind is due for nobody.
        leads = known or Leads(kind, [Held(lead, rules.now)])
        found.append(_undecided(connection, rules, leads, _oldest_undecided(leads.due_at)))
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
            row = connection.exec_driver_sql(_RESERVATIONS, span | values | behind).one()
        return Taken(row.ids, (row.starts_at, row.event_id, row.ids[-1])) if row.ids else Taken((), None)

    def apply(self, connection: Connection, ids: Sequence[int]) -> dict[str, int]:
        """Write the reminders of these reservations and queue those that are to be sent."""
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
        return {row.state: row.reminders for row in rows}


# What the keys of events begin with among the rows that are left out.
_EVENT = "event "
# And those of events of whose change nobody can be told.
CHANGES = "change of event "
_LARGEST_ID = 2**63 - 1

# In the order of ids, as everything that locks several reminders.
_TOLD = """
    WITH told AS MATERIALIZED (
        SELECT reminder.id, said.starts_at, said.venue
        FROM unnest(%(references)s::text[], %(kinds)s::text[], %(dates)s::date[],
            %(starts)s::timestamptz[], %(venues)s::text[]) AS said (ref, kind, event_date, starts_at, venue)
        JOIN reservation ON public_ref = said.ref
        JOIN reminder ON reservation_id = reservation.id AND reminder.kind = said.kind
            AND reminder.event_date = said.event_date
        ORDER BY reminder.id FOR UPDATE OF reminder
    )
    UPDATE reminder SET told_starts_at = told.starts_at, told_venue = told.venue FROM told WHERE reminder.id = told.id
"""


def _taken(rows: str) -> str:
    """All ids of `rows` in one array, and where the last of them stands."""
    return f"""
        SELECT array_agg(id) AS ids, max(starts_at) AS starts_at, (array_agg(event_id))[count(*)] AS event_id
        FROM ({rows}) AS taken
    """


_RESERVATION_NAME = "SELECT public_ref FROM reservation WHERE id = %(id)s::bigint"

_END_OF_KINDS = sql(__file__, "end_of_kinds", reminding=SEND_REMINDERS.name)

# Event by event, and of a large one the reservations behind the last that were taken: neither is read twice.
_RESERVATIONS = _taken("""
    SELECT coming.starts_at, coming.id AS event_id, held.id
    FROM (
        SELECT id, starts_at,
            CASE WHEN (starts_at, id) = (%(from_start)s::timestamptz, %(from_event)s::bigint)
                THEN %(from_reservation)s::bigint ELSE 0 END AS behind
        FROM event
        WHERE status IN ('OPEN', 'CLOSED') AND starts_at <= %(to_start)s::timestamptz
            AND (starts_at, id) >= (%(from_start)s::timestamptz, %(from_event)s::bigint)
        ORDER BY starts_at, id
    ) AS coming CROSS JOIN LATERAL (
        SELECT id FROM reservation
        WHERE event_id = coming.id AND status = 'CONFIRMED' AND id > coming.behind
            AND id <> ALL (%(left_out)s::bigint[])
        ORDER BY id LIMIT %(size)s::bigint
    ) AS held
    ORDER BY coming.starts_at, coming.id, held.id LIMIT %(size)s::bigint
""")

_THESE_RESERVATIONS = _taken("""
    SELECT starts_at, event_id, reservation.id
    FROM reservation JOIN event ON event.id = event_id
    WHERE reservation.id = ANY (%(only)s::bigint[]) AND reservation.status = 'CONFIRMED'
        AND event.status IN ('OPEN', 'CLOSED')
        AND starts_at > %(from_start)s::timestamptz AND starts_at <= %(to_start)s::timestamptz
    ORDER BY starts_at, event_id, reservation.id
""")

_EVENTS_IN_ZONES = """
    SELECT id, external_ref, timezone FROM event
    WHERE status IN ('OPEN', 'CLOSED') AND timezone = ANY (%(timezones)s::text[])
        AND starts_at > %(from_start)s::timestamptz AND starts_at <= %(to_start)s::timestamptz
    ORDER BY starts_at, id
"""

_LOCAL_DAY = """
    local_day AS MATERIALIZED (
        SELECT * FROM unnest(
            %(timezones)s::text[], %(days)s::date[],
            %(starts)s::timestamptz[], %(ends)s::timestamptz[]
        ) AS day (timezone, event_date, begins, ends)
    )
"""

# A ticket that is to be bought in days is a mistake of who wrote it, and would keep its buyer unreminded until the
# start; within a day it may be the hour of another zone, and comes.
_BOUGHT = """
    CASE WHEN coalesce(confirmed_at, created_at) <= %(within_a_day)s::timestamptz
        THEN coalesce(confirmed_at, created_at) ELSE '-infinity' END
"""

# Events whose reminders may have to be decided at :now. `due_at` stands for the SQL of when they are due.
_COMING = """
    FROM event
    CROSS JOIN LATERAL (SELECT {due_at} AS due_at) AS due
    JOIN local_day ON local_day.timezone = event.timezone AND starts_at >= begins AND starts_at < local_day.ends
"""
_MAY_BE_DUE = """
    (event.status = 'OPEN' OR event.status = 'CLOSED' AND starts_at <= %(now)s::timestamptz)
        AND (due_at IS NULL OR due_at <= %(now)s::timestamptz OR starts_at <= %(now)s::timestamptz)
"""

_WITHIN = "starts_at > %(from_start)s::timestamptz AND starts_at <= %(to_start)s::timestamptz"

_TIMEZONES_WITHIN = sql(__file__, "timezones_within", within=_WITHIN)

_UNDECIDED = f"""
    {_COMING} JOIN reservation ON event_id = event.id AND reservation.status = 'CONFIRMED'
    WHERE {_MAY_BE_DUE}
    AND ({_BOUGHT} <= %(quiet_since)s::timestamptz OR starts_at <= %(now)s::timestamptz)
    AND event.status IN ('OPEN', 'CLOSED') AND {_WITHIN}
    AND NOT EXISTS (
        SELECT FROM reminder
        WHERE reservation_id = reservation.id AND kind = %(kind)s::text
            AND reminder.event_date = local_day.event_date)
"""

_ANY_TO_TRY = sql(__file__, "any_to_try", any_to_try_reminding=any_to_try(SEND_REMINDERS.name))

_IS_LEFT_OUT = is_left_out(SEND_REMINDERS.name, "%(scope)s::text || reservation.id")


@cache
def _is_undecided(due_at: str) -> str:
    return f"""
        WITH {_LOCAL_DAY}
        SELECT %(any_left_out)s::boolean
            OR EXISTS (SELECT {_UNDECIDED.format(due_at=due_at)} AND NOT {_IS_LEFT_OUT})
    """


@cache
def _oldest_undecided(due_at: str) -> str:
    return f"""
        WITH {_LOCAL_DAY}
        SELECT min(greatest(
            coalesce(due_at, starts_at - %(lead)s::interval),
            least({_BOUGHT} + %(quiet)s::interval, starts_at)))
        {_UNDECIDED.format(due_at=due_at)} AND NOT {_IS_LEFT_OUT}
    """


@cache
def _undecided_count(due_at: str) -> str:
    undecided = _UNDECIDED.format(due_at=due_at)
    return f"WITH {_LOCAL_DAY} SELECT count(*) {undecided} AND NOT {_IS_LEFT_OUT}"


# Each reminder is an aggregate of its own: one that is in doubt holds back no other of its reservation.
_AGGREGATE = "public_ref || ':' || %(kind)s::text || ':' || to_char(event_date, 'YYYY-MM-DD')"

_KEY = f"'ReminderDue:' || {_AGGREGATE}"
# Of the mail that tells of the `number`th change to who was reminded.
CHANGE_KEY = """
    'ReminderChanged:' || public_ref || ':' || reminder.kind || ':' || to_char(reminder.event_date, 'YYYY-MM-DD')
        || ':' || number
"""

_QUEUE_EVENTS = appending(
    "ReminderDue",
    """reminded JOIN reservation ON reservation.id = reservation_id JOIN event ON event.id = event_id
        WHERE reminded.state = 'QUEUED' ORDER BY reservation_id""",
    aggregate_type="reminder",
    aggregate_id=_AGGREGATE,
    payload="""jsonb_build_object('ref', public_ref, 'event_id', public_id, 'kind', %(kind)s::text,
        'event_date', reminded.event_date, 'starts_at', starts_at)""",
    dedupe_key=_KEY,
    occurred_at="%(now)s::timestamptz",
    event_id="reminded.outbox_event_id",
)

# One row per reservation whose reminder is to be decided; the unique key makes the decision once. Whom the quiet keeps
# silent until the start nobody could have reminded in time, so that is no reminder missed. What was written is joined
# to its tables, by their keys: of a list of its own the planner knows no size, and would go through it per row. The
# events of what is chosen are looked up one by one: joined, all events of the next day would be read for each chunk.
_REMIND = f"""
    WITH {_LOCAL_DAY}, chosen AS MATERIALIZED (
        SELECT reservation.id, public_ref, {_BOUGHT} AS bought, coming.*
        FROM reservation CROSS JOIN LATERAL (
            SELECT public_id, starts_at, event_date, due_at, starts_at - %(quiet)s::interval AS quiet_from
            {_COMING} WHERE event.id = event_id AND {_MAY_BE_DUE} OFFSET 0
        ) AS coming
        WHERE reservation.id = ANY (%(ids)s::bigint[]) AND reservation.status = 'CONFIRMED'
    ), decided AS (
        SELECT id, public_ref, public_id, starts_at, event_date,
            CASE
                WHEN due_at IS NULL OR bought > due_at OR bought >= quiet_from THEN 'SKIPPED'
                WHEN starts_at <= %(now)s::timestamptz THEN 'MISSED'
                WHEN cardinality(%(nearer)s::text[]) > 0 AND EXISTS (
                    SELECT FROM reminder AS nearer
                    WHERE reservation_id = chosen.id AND nearer.kind = ANY (%(nearer)s::text[])
                        AND nearer.event_date = chosen.event_date AND nearer.state = 'QUEUED') THEN 'SKIPPED'
                ELSE 'QUEUED'
            END AS state
        FROM chosen WHERE bought <= %(quiet_since)s::timestamptz OR starts_at <= %(now)s::timestamptz
    ), reminded AS (
        INSERT INTO reminder (reservation_id, kind, event_date, state, outbox_event_id)
        SELECT id, %(kind)s::text, event_date, state,
            CASE WHEN state = 'QUEUED' THEN {derived_event_id(_KEY)} END
        FROM decided ORDER BY id
        ON CONFLICT (reservation_id, kind, event_date) DO NOTHING
        RETURNING reservation_id, event_date, state, outbox_event_id
    ), queued AS ({_QUEUE_EVENTS})
    SELECT state, count(*) AS reminders FROM reminded GROUP BY state
"""


@cache
def _remind(due_at: str) -> str:
    return _REMIND.format(due_at=due_at)
