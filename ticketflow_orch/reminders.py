"""Reminders before an event: one per reservation, kind and local date of the event, however often anybody looks.

"24 hours before" means elapsed hours. The date in the key is the event's own local date: an event that moves to another
date reminds once more, one that moves by an hour does not. Of several kinds that are due at once the nearest is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import cache

from sqlalchemy import Connection, Engine, TextClause, text

from ticketflow_orch.chunked import BadRow, ChunkedWork, Wanted
from ticketflow_orch.database import transaction
from ticketflow_orch.months import day_window, known_zones, unknown_zone, zone
from ticketflow_orch.outbox import derived_event_id
from ticketflow_orch.reminder_leads import Held, Leads, agree_on, read_leads
from ticketflow_orch.settings import Settings


@dataclass(frozen=True, slots=True)
class ReminderRules:
    """`kinds`: how long before the start each kind reminds. `quiet`: nobody is reminded so soon after buying.

    `mail_from`: what was due before is loaded history and reminds nobody; `now` is the business clock (aware).
    """

    now: datetime
    kinds: Mapping[str, timedelta]
    quiet: timedelta = timedelta(hours=2)
    mail_from: datetime | None = None
    chunk_size: int = 5000
    # How far back a start is still looked at, to show reminders that were missed.
    missed_horizon: timedelta = timedelta(days=2)

    @classmethod
    def configured(cls, settings: Settings, now: datetime) -> ReminderRules:
        """The rules that `settings` make, at the instant `now`."""
        return cls(now, settings.reminder_kinds, settings.reminder_quiet, settings.mail_from)


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
        connection.execute(_TOLD, values)


def send_reminders(engine: Engine, rules: ReminderRules) -> Reminded:
    """Queue every reminder that is due: its row and its outbox event in one statement a chunk.

    Only CONFIRMED reservations of OPEN events that have not begun are reminded. What nobody looked at in time is
    caught up until the event starts, and is MISSED after that, where it can be seen. Events in a zone that is unknown
    are left out as bad rows: without a zone they have no local date to remind of.
    """
    totals = {"QUEUED": 0, "SKIPPED": 0, "MISSED": 0}
    bad: list[BadRow] = []
    nearer: list[str] = []
    for kind, lead in _nearest_first(rules):
        with transaction(engine) as connection:
            leads = agree_on(connection, kind, lead, rules.now)
        work = _KindOfReminder(leads, tuple(nearer), rules)
        nearer.append(kind)
        chunks = ChunkedWork(engine, work.take, work.apply, rules.chunk_size, name=_EVENT_NAME)
        for effect in chunks.run():
            for state, reminders in effect.items():
                totals[state] += reminders
        bad.extend((*chunks.bad, *work.in_unknown_zones.values()))
    return Reminded(totals["QUEUED"], totals["SKIPPED"], totals["MISSED"], tuple(bad))


def reminders_are_due(connection: Connection, rules: ReminderRules) -> bool:
    """Whether `send_reminders` would write or leave out anything: reads the events within the horizon, nothing else.

    A kind that is not known yet counts as due: what comes first must not find it newly enabled. So does an event in an
    unknown zone: nobody would be told of one that no other reminder comes along with.
    """
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
    """Since when the reminder that has waited longest has been due, if any is; events in unknown zones have none."""
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


def _undecided(connection: Connection, rules: ReminderRules, leads: Leads, question: TextClause) -> object:
    span = {"from_start": rules.now - rules.missed_horizon, "to_start": rules.now + leads.lead}
    timezones = connection.execute(_TIMEZONES_WITHIN, span).scalars().all()
    if not timezones:
        return None
    values = {
        "kind": leads.kind,
        "now": rules.now,
        "quiet": rules.quiet,
        "quiet_since": rules.now - rules.quiet,
        "any_left_out": not known_zones().issuperset(timezones),
        **leads.parameters(rules.mail_from),
        **_local_days(rules, leads.lead, timezones),
    }
    return connection.execute(question, values | span).scalar_one()


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


@dataclass
class _KindOfReminder:
    """The chunks of one kind: events by their start, each with all of its reservations."""

    leads: Leads
    nearer: Sequence[str]
    rules: ReminderRules
    seen: tuple[datetime, int] = (datetime.min.replace(tzinfo=UTC), 0)
    # By their id: a chunk that is halved because of another row comes past them again.
    in_unknown_zones: dict[int, BadRow] = field(default_factory=dict)

    def take(self, connection: Connection, wanted: Wanted) -> list[int]:
        """The next events that start within the lead, or have started lately."""
        rows = connection.execute(
            _EVENTS,
            {
                "from_start": max(self.rules.now - self.rules.missed_horizon, self.seen[0]),
                "from_id": self.seen[1],
                "to_start": self.rules.now + self.leads.lead,
                **wanted.parameters,
            },
        ).all()
        if rows and wanted.only is None:
            self.seen = (rows[-1].starts_at, rows[-1].id)
        return [row.id for row in rows]

    def apply(self, connection: Connection, ids: list[int]) -> dict[str, int]:
        """Write the reminders of these events and queue those that are to be sent."""
        timezones = connection.execute(_TIMEZONES, {"ids": ids}).scalars().all()
        if unknown := set(timezones) - known_zones():
            self._set_aside(connection, ids, unknown)
        rows = connection.execute(
            _remind(self.leads.due_at),
            {
                "ids": ids,
                "kind": self.leads.kind,
                "nearer": list(self.nearer),
                "now": self.rules.now,
                "quiet": self.rules.quiet,
                "quiet_since": self.rules.now - self.rules.quiet,
                **self.leads.parameters(self.rules.mail_from),
                **_local_days(self.rules, self.leads.lead, timezones),
            },
        )
        return {row.state: row.reminders for row in rows}

    def _set_aside(self, connection: Connection, ids: list[int], unknown: Set[str]) -> None:
        rows = connection.execute(_EVENTS_IN_ZONES, {"ids": ids, "timezones": sorted(unknown)})
        self.in_unknown_zones |= {row.id: BadRow(row.id, unknown_zone(row.timezone), row.external_ref) for row in rows}


# In the order of ids, as everything that locks several reminders.
_TOLD = text("""
    WITH told AS MATERIALIZED (
        SELECT reminder.id, said.starts_at, said.venue
        FROM unnest(CAST(:references AS text[]), CAST(:kinds AS text[]), CAST(:dates AS date[]),
            CAST(:starts AS timestamptz[]), CAST(:venues AS text[])) AS said (ref, kind, event_date, starts_at, venue)
        JOIN reservation ON public_ref = said.ref
        JOIN reminder ON reservation_id = reservation.id AND reminder.kind = said.kind
            AND reminder.event_date = said.event_date
        ORDER BY reminder.id FOR UPDATE OF reminder
    )
    UPDATE reminder SET told_starts_at = told.starts_at, told_venue = told.venue FROM told WHERE reminder.id = told.id
""")

_EVENT_NAME = text("SELECT external_ref FROM event WHERE id = CAST(:id AS bigint)")

_EVENTS = text("""
    SELECT id, starts_at FROM event
    WHERE status IN ('OPEN', 'CLOSED') AND starts_at <= CAST(:to_start AS timestamptz)
        AND (CAST(:only AS bigint[]) IS NOT NULL
            OR (starts_at, id) > (CAST(:from_start AS timestamptz), CAST(:from_id AS bigint)))
        AND (CAST(:only AS bigint[]) IS NULL OR id = ANY (CAST(:only AS bigint[])))
        AND id <> ALL (CAST(:left_out AS bigint[]))
    ORDER BY starts_at, id LIMIT CAST(:size AS bigint)
""")

_TIMEZONES = text("SELECT DISTINCT timezone FROM event WHERE id = ANY (CAST(:ids AS bigint[])) ORDER BY timezone")

_EVENTS_IN_ZONES = text("""
    SELECT id, external_ref, timezone FROM event
    WHERE id = ANY (CAST(:ids AS bigint[])) AND timezone = ANY (CAST(:timezones AS text[]))
    ORDER BY starts_at, id
""")

_LOCAL_DAY = """
    local_day AS MATERIALIZED (
        SELECT * FROM unnest(
            CAST(:timezones AS text[]), CAST(:days AS date[]),
            CAST(:starts AS timestamptz[]), CAST(:ends AS timestamptz[])
        ) AS day (timezone, event_date, begins, ends)
    )
"""

# Reservations whose reminder can be decided at :now, of the events that the caller's WHERE adds. `due_at` stands for
# the SQL of when it is due.
_DECIDABLE = """
    FROM event
    CROSS JOIN LATERAL (SELECT {due_at} AS due_at) AS due
    JOIN local_day ON local_day.timezone = event.timezone AND starts_at >= begins AND starts_at < local_day.ends
    JOIN reservation ON event_id = event.id AND reservation.status = 'CONFIRMED'
    WHERE (event.status = 'OPEN' OR event.status = 'CLOSED' AND starts_at <= CAST(:now AS timestamptz))
        AND (coalesce(confirmed_at, created_at) <= CAST(:quiet_since AS timestamptz)
            OR starts_at <= CAST(:now AS timestamptz))
        AND (due_at IS NULL OR due_at <= CAST(:now AS timestamptz) OR starts_at <= CAST(:now AS timestamptz))
"""

_WITHIN = "starts_at > CAST(:from_start AS timestamptz) AND starts_at <= CAST(:to_start AS timestamptz)"

_TIMEZONES_WITHIN = text(
    f"SELECT DISTINCT timezone FROM event WHERE status IN ('OPEN', 'CLOSED') AND {_WITHIN} ORDER BY timezone"
)

_UNDECIDED = f"""
    {_DECIDABLE} AND event.status IN ('OPEN', 'CLOSED') AND {_WITHIN}
    AND NOT EXISTS (
        SELECT FROM reminder
        WHERE reservation_id = reservation.id AND kind = CAST(:kind AS text)
            AND reminder.event_date = local_day.event_date)
"""


@cache
def _is_undecided(due_at: str) -> TextClause:
    undecided = _UNDECIDED.format(due_at=due_at)
    return text(f"WITH {_LOCAL_DAY} SELECT CAST(:any_left_out AS boolean) OR EXISTS (SELECT {undecided})")


@cache
def _oldest_undecided(due_at: str) -> TextClause:
    return text(f"""
        WITH {_LOCAL_DAY}
        SELECT min(greatest(
            coalesce(due_at, starts_at - CAST(:lead AS interval)),
            least(coalesce(confirmed_at, created_at) + CAST(:quiet AS interval), starts_at)))
        {_UNDECIDED.format(due_at=due_at)}
    """)


@cache
def _undecided_count(due_at: str) -> TextClause:
    return text(f"WITH {_LOCAL_DAY} SELECT count(*) {_UNDECIDED.format(due_at=due_at)}")


# Each reminder is an aggregate of its own: one that is in doubt holds back no other of its reservation.
_AGGREGATE = "public_ref || ':' || CAST(:kind AS text) || ':' || to_char(event_date, 'YYYY-MM-DD')"

_KEY = f"'ReminderDue:' || {_AGGREGATE}"
# Of the mail that tells of the `number`th change to who was reminded.
CHANGE_KEY = """
    'ReminderChanged:' || public_ref || ':' || reminder.kind || ':' || to_char(reminder.event_date, 'YYYY-MM-DD')
        || ':' || number
"""

# One row per reservation whose reminder is to be decided; the unique key makes the decision once. Whom the quiet keeps
# silent until the start nobody could have reminded in time, so that is no reminder missed. What was written is joined
# to its tables, by their keys: of a list of its own the planner knows no size, and would go through it per row.
_REMIND = f"""
    WITH {_LOCAL_DAY}, decided AS (
        SELECT reservation.id, reservation.public_ref, event.public_id, starts_at, local_day.event_date,
            CASE
                WHEN due_at IS NULL OR coalesce(confirmed_at, created_at) > due_at
                    OR coalesce(confirmed_at, created_at) >= starts_at - CAST(:quiet AS interval) THEN 'SKIPPED'
                WHEN starts_at <= CAST(:now AS timestamptz) THEN 'MISSED'
                WHEN cardinality(CAST(:nearer AS text[])) > 0 AND EXISTS (
                    SELECT FROM reminder AS nearer
                    WHERE reservation_id = reservation.id AND nearer.kind = ANY (CAST(:nearer AS text[]))
                        AND nearer.event_date = local_day.event_date AND nearer.state = 'QUEUED') THEN 'SKIPPED'
                ELSE 'QUEUED'
            END AS state
        {_DECIDABLE} AND event.id = ANY (CAST(:ids AS bigint[]))
    ), reminded AS (
        INSERT INTO reminder (reservation_id, kind, event_date, state, outbox_event_id)
        SELECT id, CAST(:kind AS text), event_date, state,
            CASE WHEN state = 'QUEUED' THEN {derived_event_id(_KEY)} END
        FROM decided ORDER BY id
        ON CONFLICT (reservation_id, kind, event_date) DO NOTHING
        RETURNING reservation_id, event_date, state, outbox_event_id
    ), queued AS (
        INSERT INTO outbox_event
            (event_id, aggregate_type, aggregate_id, event_type, payload, dedupe_key, occurred_at)
        SELECT reminded.outbox_event_id, 'reminder', {_AGGREGATE}, 'ReminderDue',
            jsonb_build_object('ref', public_ref, 'event_id', public_id, 'kind', CAST(:kind AS text),
                'event_date', reminded.event_date, 'starts_at', starts_at),
            {_KEY}, CAST(:now AS timestamptz)
        FROM reminded
        JOIN reservation ON reservation.id = reservation_id
        JOIN event ON event.id = event_id
        WHERE reminded.state = 'QUEUED'
        ORDER BY reservation_id
    )
    SELECT state, count(*) AS reminders FROM reminded GROUP BY state
"""


@cache
def _remind(due_at: str) -> TextClause:
    return text(_REMIND.format(due_at=due_at))
