"""The end of events and reservations: past events are closed, unpaid reservations expire.

Both are state machines in the database: OPEN → CLOSED and ACTIVE → EXPIRED happen once, with their outbox events in the
same transaction. A second run finds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import Connection, Engine

from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.jobs.bad_rows import TRIED_EVERY, any_to_try, is_left_out
from ticketflow_orch.jobs.batches import BadRow, ChunkedWork, Taken, Wanted, as_array
from ticketflow_orch.outbox.events import appending
from ticketflow_orch.periods.two_clocks import LARGEST_DIFFERENCE, judged_at
from ticketflow_orch.settings import Settings
from ticketflow_orch.ticketing.captures import KEPT_CAPTURE, kept

CLOSING, EXPIRY = "close_events", "expire_reservations"
SWEEP_PATIENCE = 5.0
# Before all instants.
_FIRST = ("-infinity", 0)
# More reservations than these that are left after a run are not counted: it is the next minute's run that matters.
LEFT_COUNTED = 1000


@dataclass(frozen=True, slots=True)
class LifecycleRules:
    """When things end. Lengths of time; `now` is the business clock (aware)."""

    now: datetime
    run_id: str
    closing_grace: timedelta = timedelta(0)
    expiry_delay: timedelta = timedelta(0)
    payment_grace: timedelta = timedelta(minutes=30)
    chunk_size: int = 10_000

    @classmethod
    def configured(cls, settings: Settings, now: datetime, run_id: str = "") -> LifecycleRules:
        """The rules that `settings` make, at the instant `now`."""
        return cls(
            now=now,
            run_id=run_id,
            closing_grace=settings.closing_grace,
            expiry_delay=settings.expiry_delay,
            payment_grace=settings.payment_grace,
        )

    @property
    def limits(self) -> dict[str, datetime]:
        """What `_IS_DUE` binds."""
        return {
            "due_before": self.now - self.expiry_delay,
            "stuck_before": self.now - self.payment_grace,
            "begun_before": self.now + timedelta(seconds=LARGEST_DIFFERENCE),
        }


@dataclass(frozen=True, slots=True)
class Closed:
    """What closing did. `left`: events that are due and were not closed, because others hold them or they are bad."""

    events: int
    reservations_expired: int
    left: int
    bad: tuple[BadRow, ...]


@dataclass(frozen=True, slots=True)
class Expired:
    """What expiring did. `stuck`: reservations that outlasted their payment's grace, reported now.

    `left` as in `Closed`, counted up to LEFT_COUNTED.
    """

    reservations: int
    stuck: int
    left: int
    bad: tuple[BadRow, ...]


@dataclass(frozen=True, slots=True)
class WouldEnd:
    """What a run would do now, in figures, and the `first` of them by name, those that have waited longest.

    `events` that closing would close; `reservations` that would be expired with them, or by themselves; `stuck`: those
    whose payment would be reported.
    """

    events: int
    reservations: int
    stuck: int
    first: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MoneyWithoutTicket:
    """A capture that came after its reservation had ended: money is here, a ticket is not. Minor units."""

    reservation: str
    status: str
    movement: str
    currency: str
    exponent: int
    amount: int
    recorded_at: datetime


def close_events(engine: Engine, rules: LifecycleRules) -> Closed:
    """Close every OPEN event whose end is past, and expire its reservations but those with a payment or with money.

    Judged by `ends_at`, never by the start. DRAFT and CANCELLED events stay as they are, and a closed event whose end
    moves into the future stays closed. A reservation that cannot be expired keeps no event open: it is left to the
    expiry, as its event's others are then.

    Raises:
        InvalidInput: this host's clock and the database's are too far apart to say what is past.
        ManyBadRowsError: more events cannot be closed than are looked for one by one; all others are.
    """
    rules = _judged(engine, rules, "close nothing")
    ended_before = rules.now - rules.closing_grace

    def take(connection: Connection, wanted: Wanted) -> Taken:
        return _taken(connection, wanted, _DUE_EVENTS, "event.ends_at", {"ended_before": ended_before})

    def close(connection: Connection, ids: Sequence[int], orphans: Sequence[int]) -> tuple[int, int]:
        values = {"ids": as_array(ids), "orphans": as_array(orphans), "now": rules.now, "run_id": rules.run_id}
        row = connection.exec_driver_sql(_CLOSE, values).one()
        return row.closed, row.expired

    def apply(connection: Connection, ids: Sequence[int]) -> tuple[int, int]:
        return close(
            connection, ids, connection.exec_driver_sql(_LOCK_ORPHANS, {"ids": as_array(ids)}).scalar_one() or ()
        )

    def alone(connection: Connection, event: int) -> tuple[int, int]:
        return close(connection, [event], ())

    work = ChunkedWork(engine, take, apply, rules.chunk_size, name=_EVENT_NAME, job=CLOSING, now=rules.now, alone=alone)
    effects = [*work.run(), *work.sweep(SWEEP_PATIENCE)]
    with engine.connect() as connection:
        left = connection.exec_driver_sql(_EVENTS_LEFT, {"ended_before": ended_before}).scalar_one()
    work.must_be_few()
    return Closed(sum(events for events, _ in effects), sum(held for _, held in effects), left, tuple(work.bad))


def expire_reservations(engine: Engine, rules: LifecycleRules) -> Expired:
    """Expire every ACTIVE reservation whose time is up, and report what outlasted the grace of its payment.

    A payment in flight is left alone; one that did not end within its grace is reported once and never released. So is
    a reservation whose money is here and that nobody confirmed; where no payment was begun, its grace begins with its
    expiry. One whose captures were all given back is expired.

    Raises:
        InvalidInput: this host's clock and the database's are too far apart to say whose time is up.
        ManyBadRowsError: more reservations cannot be expired than are looked for one by one; all others are.
    """
    rules = _judged(engine, rules, "expire nothing")

    # Each look goes on where the last one ended: what was expired before it lies dead at the beginning of the index.
    def take(connection: Connection, wanted: Wanted) -> Taken:
        return _taken(connection, wanted, _DUE_RESERVATIONS, "reservation.expires_at", rules.limits)

    def apply(connection: Connection, ids: Sequence[int]) -> tuple[int, int]:
        values = {"ids": as_array(ids), "now": rules.now, "run_id": rules.run_id, **rules.limits}
        row = connection.exec_driver_sql(_EXPIRE, values).one()
        return row.expired, row.stuck

    work = ChunkedWork(engine, take, apply, rules.chunk_size, name=_RESERVATION_NAME, job=EXPIRY, now=rules.now)
    effects = list(work.run())
    with engine.connect() as connection:
        left = connection.exec_driver_sql(_RESERVATIONS_LEFT, rules.limits).scalar_one()
    work.must_be_few()
    return Expired(sum(held for held, _ in effects), sum(stuck for _, stuck in effects), left, tuple(work.bad))


def would_close(engine: Engine, rules: LifecycleRules, named: int = 20) -> WouldEnd:
    """What `close_events` would do; nothing is written or locked.

    Raises:
        InvalidInput: as `close_events` does.
    """
    rules = _judged(engine, rules, "close nothing")
    values = {"ended_before": rules.now - rules.closing_grace, "named": named}
    with engine.connect() as connection:
        row = connection.exec_driver_sql(_WOULD_CLOSE, values).one()
    return WouldEnd(row.events, row.reservations, 0, tuple(row.first or ()))


def would_expire(engine: Engine, rules: LifecycleRules, named: int = 20) -> WouldEnd:
    """What `expire_reservations` would do; nothing is written or locked.

    Raises:
        InvalidInput: as `expire_reservations` does.
    """
    rules = _judged(engine, rules, "expire nothing")
    with engine.connect() as connection:
        row = connection.exec_driver_sql(_WOULD_EXPIRE, rules.limits | {"named": named}).one()
    return WouldEnd(0, row.reservations, row.stuck, tuple(row.first or ()))


def _judged(engine: Engine, rules: LifecycleRules, undone: str) -> LifecycleRules:
    """The same rules, by the earlier of both clocks: what is closed or expired stays so."""
    with engine.connect() as connection:
        return replace(rules, now=judged_at(connection, rules.now, undone))


def _taken(connection: Connection, wanted: Wanted, due: str, instant: str, limits: Mapping[str, datetime]) -> Taken:
    """Of the rows that are `due`, in the order of their `instant` (table and column), those that are `wanted`."""
    values: dict[str, object] = {"size": wanted.size, **limits}
    if wanted.only is not None:
        which = "id = ANY (%(only)s::bigint[])"
        values["only"] = as_array(wanted.only)
    else:
        from_at, from_id = wanted.after or _FIRST
        which = f"id <> ALL (%(left_out)s::bigint[]) AND ({instant}, id) > {_PLACE}"
        values |= {"left_out": list(wanted.left_out), "from_at": from_at, "from_id": from_id}
    locking = wanted.locking(instant.partition(".")[0])
    chunk = f"{due} AND {which} ORDER BY {instant}, id LIMIT %(size)s::bigint {locking}"
    query = f"SELECT array_agg(id) AS ids, CAST(max(at) AS text) AS at FROM ({chunk}) AS chunk"
    row = connection.exec_driver_sql(query, values).one()
    return Taken(row.ids, (row.at, row.ids[-1])) if row.ids else Taken((), None)


def reservations_are_due(connection: Connection, rules: LifecycleRules) -> bool:
    """Whether `expire_reservations` is to look, by a probe of an index. It tries now and then what it leaves out."""
    values = rules.limits | {"tried_before": rules.now - TRIED_EVERY}
    return bool(connection.exec_driver_sql(_RESERVATIONS_ARE_DUE, values).scalar_one())


def oldest_due_reservation(connection: Connection, rules: LifecycleRules) -> datetime | None:
    """Since when the first of the due reservations has been due, if any is; what is left out is not."""
    values = {"delay": rules.expiry_delay, "grace": rules.payment_grace, **rules.limits}
    oldest: datetime | None = connection.exec_driver_sql(_OLDEST_DUE_RESERVATION, values).scalar_one_or_none()
    return oldest


def oldest_due_event(connection: Connection, rules: LifecycleRules) -> datetime | None:
    """Since when the event that has waited longest has been due to be closed, if any is; what is left out is not."""
    values = {"grace": rules.closing_grace, "ended_before": rules.now - rules.closing_grace}
    oldest: datetime | None = connection.exec_driver_sql(_OLDEST_DUE_EVENT, values).scalar_one()
    return oldest


def money_without_ticket(connection: Connection, limit: int = 100) -> tuple[MoneyWithoutTicket, ...]:
    """Captures recorded after their reservation had ended of which anything was kept; oldest first."""
    rows = connection.exec_driver_sql(_MONEY_WITHOUT_TICKET, {"limit": limit})
    return tuple(MoneyWithoutTicket(*row) for row in rows)


_EVENT_NAME = "SELECT external_ref FROM event WHERE id = %(id)s::bigint"

_RESERVATION_NAME = "SELECT public_ref FROM reservation WHERE id = %(id)s::bigint"

_PLACE = "(%(from_at)s::timestamptz, %(from_id)s::bigint)"

_DUE_EVENTS = """
    SELECT id, ends_at AS at FROM event
    WHERE status = 'OPEN' AND ends_at < %(ended_before)s::timestamptz
"""

# Without SKIP LOCKED a payment under way could hold up the closing; what is skipped is left to the expiry.
_LOCK_ORPHANS = """
    SELECT array_agg(id) FROM (
        SELECT id FROM reservation
        WHERE event_id = ANY (%(ids)s::bigint[]) AND status = 'ACTIVE' AND payment_started_at IS NULL
            AND stuck_reported_at IS NULL
        ORDER BY id
        FOR UPDATE SKIP LOCKED
    ) AS orphan
"""

_UNPAID = f"NOT EXISTS (SELECT {KEPT_CAPTURE})"

_ANNOUNCE_CLOSED = appending(
    "EventClosed",
    "closed",
    aggregate_type="event",
    aggregate_id="CAST(public_id AS text)",
    payload="jsonb_build_object('event_id', public_id)",
    dedupe_key="'EventClosed:' || public_id",
    occurred_at="%(now)s::timestamptz",
    known="skip",
)
_ANNOUNCE_EXPIRED = appending(
    "ReservationExpired",
    "expired",
    aggregate_type="reservation",
    aggregate_id="public_ref",
    payload="jsonb_build_object('ref', public_ref)",
    dedupe_key="'ReservationExpired:' || public_ref",
    occurred_at="%(now)s::timestamptz",
    known="skip",
)

_CLOSE = sql(__file__, "close", unpaid=_UNPAID, announce_closed=_ANNOUNCE_CLOSED, announce_expired=_ANNOUNCE_EXPIRED)

_EVENTS_LEFT = "SELECT count(*) FROM event WHERE status = 'OPEN' AND ends_at < %(ended_before)s::timestamptz"

_OLDEST_DUE_EVENT = sql(__file__, "oldest_due_event", is_left_out_closing=is_left_out(CLOSING, "event.id"))

# A payment that is to begin later is a mistake of who wrote it, which would hold its seats until then.
_GRACE_BEGAN = """
    CASE WHEN payment_started_at <= %(begun_before)s::timestamptz THEN payment_started_at ELSE expires_at END
"""

_IS_OVERDUE = f"""
    status = 'ACTIVE' AND stuck_reported_at IS NULL AND expires_at <= %(due_before)s::timestamptz
    AND (payment_started_at IS NULL OR {_GRACE_BEGAN} <= %(stuck_before)s::timestamptz)
"""

# All that is past its grace: if it is not expired it is reported. Before that, one with money waits to be confirmed.
_IS_DUE = f"""
    {_IS_OVERDUE} AND NOT EXISTS (
        SELECT {KEPT_CAPTURE} AND {_GRACE_BEGAN} > %(stuck_before)s::timestamptz)
"""

# A capture since its beginning ended a payment, whatever became of the money. An older one is of an earlier attempt.
_NO_PAYMENT_IS_OPEN = """
    (payment_started_at IS NULL OR EXISTS (
        SELECT FROM money_movement
        WHERE reservation_id = reservation.id AND kind = 'CAPTURE' AND NOT is_void
            AND occurred_at >= payment_started_at))
"""

# Whether a reservation is paid is asked once it is locked; asking before as well would cost a probe per row.
_DUE_RESERVATIONS = f"SELECT id, expires_at AS at FROM reservation WHERE {_IS_OVERDUE}"

_ANNOUNCE_STUCK = appending(
    "ReservationPaymentStuck",
    "stuck",
    aggregate_type="reservation",
    aggregate_id="public_ref",
    payload="jsonb_build_object('ref', public_ref, 'payment_started_at', payment_started_at)",
    dedupe_key="""'ReservationPaymentStuck:' || public_ref || ':' || to_char(
        coalesce(payment_started_at, expires_at) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')""",
    occurred_at="%(now)s::timestamptz",
    known="skip",
)

_EXPIRE = sql(
    __file__,
    "expire",
    unpaid=_UNPAID,
    no_payment_is_open=_NO_PAYMENT_IS_OPEN,
    grace_began=_GRACE_BEGAN,
    announce_expired=_ANNOUNCE_EXPIRED,
    announce_stuck=_ANNOUNCE_STUCK,
)

# Everything that lies in the past seems due to the planner, which knows nothing of what was expired long ago: left to
# itself it reads the whole table. Asked for the first few in the order of the index, it takes the index.
_DUE = f"FROM reservation WHERE {_IS_DUE}"
_IN_ORDER = "ORDER BY expires_at, id"

_RESERVATIONS_LEFT = sql(__file__, "reservations_left", due=_DUE, in_order=_IN_ORDER, left_counted=LEFT_COUNTED)

_RESERVATIONS_ARE_DUE = sql(
    __file__,
    "reservations_are_due",
    any_to_try_expiry=any_to_try(EXPIRY),
    due=_DUE,
    is_left_out_expiry=is_left_out(EXPIRY, "reservation.id"),
    in_order=_IN_ORDER,
)

_OLDEST_DUE_RESERVATION = sql(
    __file__,
    "oldest_due_reservation",
    kept_capture=KEPT_CAPTURE,
    grace_began=_GRACE_BEGAN,
    due=_DUE,
    is_left_out_expiry=is_left_out(EXPIRY, "reservation.id"),
    in_order=_IN_ORDER,
)

_MONEY_WITHOUT_TICKET = sql(__file__, "money_without_ticket", kept_capture=kept("capture"))

_WOULD_CLOSE = sql(__file__, "would_close", unpaid=_UNPAID)

_WOULD_EXPIRE = sql(
    __file__,
    "would_expire",
    unpaid=_UNPAID,
    no_payment_is_open=_NO_PAYMENT_IS_OPEN,
    grace_began=_GRACE_BEGAN,
    is_overdue=_IS_OVERDUE,
)
