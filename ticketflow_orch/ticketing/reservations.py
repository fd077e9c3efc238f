"""Expiring reservations: those whose time is up, unless a payment holds them; payments that do not end are reported.

What a person does about a payment that is stuck is in `stuck_payments`; closing an event, in `events`, expires what is
still held for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, Engine

from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.jobs.bad_rows import TRIED_EVERY, JobMemory, any_to_try, is_left_out
from ticketflow_orch.jobs.batches import BadRow, ChunkedWork, Taken, Wanted, as_array
from ticketflow_orch.jobs.intervals import EXPIRE_RESERVATIONS
from ticketflow_orch.outbox.events import ANEW, Known, append_by, appending
from ticketflow_orch.periods.two_clocks import LARGEST_DIFFERENCE
from ticketflow_orch.ticketing.captures import KEPT_CAPTURE
from ticketflow_orch.ticketing.lifecycle import (
    UNPAID,
    LifecycleRules,
    WouldEnd,
    announce_expired,
    judged,
    take_due,
)

# More reservations than these that are left after a run are not counted: it is the next minute's run that matters.
LEFT_COUNTED = 1000
_UNDONE = "expire nothing"


@dataclass(frozen=True, slots=True)
class Expired:
    """What expiring did. `stuck`: reservations that outlasted their payment's grace, reported now.

    `left`: those that are due and were not expired, because others hold them or they are bad; up to LEFT_COUNTED.
    """

    reservations: int
    stuck: int
    left: int
    bad: tuple[BadRow, ...]


def expire_reservations(engine: Engine, rules: LifecycleRules) -> Expired:
    """Expire every ACTIVE reservation whose time is up, and report what outlasted the grace of its payment.

    A payment in flight is left alone; one that did not end within its grace is reported once and never released. So is
    a reservation whose money is here and that nobody confirmed; where no payment was begun, its grace begins with its
    expiry. One whose captures were all given back is expired.

    Raises:
        TicketflowError: this host's clock and the database's are too far apart to say whose time is up.
        ManyBadRowsError: more reservations cannot be expired than are looked for one by one; all others are.
    """
    rules = judged(engine, rules, _UNDONE)
    limits = _limits(rules)

    def take(connection: Connection, wanted: Wanted) -> Taken:
        return take_due(connection, wanted, _OVERDUE, "reservation.expires_at", limits)

    def apply(connection: Connection, ids: Sequence[int]) -> tuple[int, int]:
        values = {"ids": as_array(ids), "now": rules.now, "run_id": rules.run_id, **limits}
        row = append_by(connection, _EXPIRE, values)
        return row.expired, row.stuck

    memory = JobMemory(EXPIRE_RESERVATIONS.name, rules.now)
    work = ChunkedWork(engine, take, apply, rules.chunk_size, name=_NAME, memory=memory)
    effects = list(work.run())
    with engine.connect() as connection:
        left = connection.exec_driver_sql(_LEFT, limits).scalar_one()
    work.must_be_few()
    return Expired(sum(held for held, _ in effects), sum(stuck for _, stuck in effects), left, tuple(work.bad))


def would_expire(engine: Engine, rules: LifecycleRules, named: int = 20) -> WouldEnd:
    """What `expire_reservations` would do; nothing is written or locked.

    Raises:
        TicketflowError: as `expire_reservations` does.
    """
    rules = judged(engine, rules, _UNDONE)
    with engine.connect() as connection:
        row = connection.exec_driver_sql(_WOULD_EXPIRE, {**_limits(rules), "named": named}).one()
    return WouldEnd(0, row.reservations, row.stuck, tuple(row.first or ()))


def reservations_are_due(connection: Connection, rules: LifecycleRules) -> bool:
    """Whether `expire_reservations` is to look, by a probe of an index. It tries now and then what it leaves out."""
    values = {**_limits(rules), "tried_before": rules.now - TRIED_EVERY}
    return bool(connection.exec_driver_sql(_ARE_DUE, values).scalar_one())


def oldest_due_reservation(connection: Connection, rules: LifecycleRules) -> datetime | None:
    """Since when the first of the due reservations has been due, if any is; what is left out is not."""
    values = {"delay": rules.expiry_delay, "grace": rules.payment_grace, **_limits(rules)}
    oldest: datetime | None = connection.exec_driver_sql(_OLDEST_DUE, values).scalar_one_or_none()
    return oldest


def _limits(rules: LifecycleRules) -> dict[str, datetime]:
    """What the conditions below bind."""
    return {
        "due_before": rules.now - rules.expiry_delay,
        "stuck_before": rules.now - rules.payment_grace,
        "begun_before": rules.now + timedelta(seconds=LARGEST_DIFFERENCE),
    }


_NAME = "SELECT public_ref FROM reservation WHERE id = %(id)s::bigint"

# SQL of the instant at which the grace of a reservation's payment begins. A payment that is to begin later is a mistake
# of the application, which would hold its seats until then.
_GRACE_BEGAN = """
    CASE WHEN payment_started_at <= %(begun_before)s::timestamptz THEN payment_started_at ELSE expires_at END
"""

# A condition on `reservation`: its time is up, and nothing is known yet that keeps it. Whether it is paid is asked once
# it is locked; asking before as well would cost a probe per row.
_IS_OVERDUE = f"""
    status = 'ACTIVE' AND stuck_reported_at IS NULL AND expires_at <= %(due_before)s::timestamptz
    AND (payment_started_at IS NULL OR {_GRACE_BEGAN} <= %(stuck_before)s::timestamptz)
"""

# A condition on `reservation`: a capture since its payment began ended that, whatever became of the money. An older one
# is of an earlier attempt.
_NO_PAYMENT_IS_OPEN = sql(__file__, "no_payment_is_open")

_OVERDUE = sql(__file__, "overdue", is_overdue=_IS_OVERDUE)

_DUE = sql(__file__, "due", is_overdue=_IS_OVERDUE, kept_capture=KEPT_CAPTURE, grace_began=_GRACE_BEGAN)

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

_EXPIRE: Mapping[Known, str] = {
    known: sql(
        __file__,
        "expire",
        unpaid=UNPAID,
        no_payment_is_open=_NO_PAYMENT_IS_OPEN,
        grace_began=_GRACE_BEGAN,
        announce_expired=announce_expired(known=known),
        announce_stuck=_ANNOUNCE_STUCK,
    )
    for known in ANEW
}

_LEFT = sql(__file__, "left", due=_DUE, left_counted=LEFT_COUNTED)

_LEFT_OUT = is_left_out(EXPIRE_RESERVATIONS.name, "reservation.id")

_ARE_DUE = sql(__file__, "are_due", any_to_try=any_to_try(EXPIRE_RESERVATIONS.name), due=_DUE, left_out=_LEFT_OUT)

_OLDEST_DUE = sql(
    __file__, "oldest_due", kept_capture=KEPT_CAPTURE, grace_began=_GRACE_BEGAN, due=_DUE, left_out=_LEFT_OUT
)

_WOULD_EXPIRE = sql(
    __file__,
    "would_expire",
    unpaid=UNPAID,
    no_payment_is_open=_NO_PAYMENT_IS_OPEN,
    grace_began=_GRACE_BEGAN,
    is_overdue=_IS_OVERDUE,
)
