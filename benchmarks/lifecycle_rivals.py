"""What the operations are measured against: bare set-based statements with the same writes, and a loop over rows."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Engine, FetchedValue, select, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

NOW = datetime(2026, 6, 2, 2, 30, tzinfo=UTC)
LEAD = timedelta(hours=24)

BARE = {
    "close": """
        WITH closed AS (
            UPDATE event SET status = 'CLOSED', closed_at = :now WHERE status = 'OPEN' AND ends_at < :now
            RETURNING id, public_id
        ), expired AS (
            UPDATE reservation SET status = 'EXPIRED', expired_at = :now, expired_by = 'bare'
            FROM closed WHERE event_id = closed.id AND status = 'ACTIVE'
            RETURNING public_ref
        )
        INSERT INTO outbox_event (event_id, aggregate_type, aggregate_id, event_type, payload, dedupe_key, occurred_at)
        SELECT derived_id((SELECT id FROM installation), 'outbox_event', told.key), told.* FROM (
        SELECT 'event', public_id::text, 'EventClosed', jsonb_build_object('event_id', public_id),
            'EventClosed:' || public_id, :now
        FROM closed
        UNION ALL
        SELECT 'reservation', public_ref, 'ReservationExpired', jsonb_build_object('ref', public_ref),
            'ReservationExpired:' || public_ref, :now
        FROM expired
        ) AS told (aggregate_type, aggregate_id, event_type, payload, key, occurred_at)
    """,
    "expire": """
        WITH expired AS (
            UPDATE reservation SET status = 'EXPIRED', expired_at = :now, expired_by = 'bare'
            WHERE status = 'ACTIVE' AND expires_at <= :now
            RETURNING public_ref
        )
        INSERT INTO outbox_event (event_id, aggregate_type, aggregate_id, event_type, payload, dedupe_key, occurred_at)
        SELECT derived_id((SELECT id FROM installation), 'outbox_event', 'ReservationExpired:' || public_ref),
            'reservation', public_ref, 'ReservationExpired', jsonb_build_object('ref', public_ref),
            'ReservationExpired:' || public_ref, :now
        FROM expired
    """,
    "remind": """
        WITH reminded AS (
            INSERT INTO reminder (reservation_id, kind, event_date, state, outbox_event_id)
            SELECT reservation.id, '24h', CAST(starts_at AT TIME ZONE event.timezone AS date), 'QUEUED',
                derived_id((SELECT id FROM installation), 'outbox_event', 'ReminderDue:' || public_ref || ':24h:'
                    || CAST(starts_at AT TIME ZONE event.timezone AS date))
            FROM event JOIN reservation ON event_id = event.id
            WHERE event.status = 'OPEN' AND starts_at > :now AND starts_at <= :now + CAST(:lead AS interval)
                AND reservation.status = 'CONFIRMED'
            RETURNING reservation_id, event_date, outbox_event_id
        )
        INSERT INTO outbox_event
            (event_id, aggregate_type, aggregate_id, event_type, payload, dedupe_key, occurred_at)
        SELECT outbox_event_id, 'reminder', public_ref || ':24h:' || event_date, 'ReminderDue',
            jsonb_build_object('ref', public_ref, 'event_id', public_id, 'kind', '24h', 'event_date', event_date,
                'starts_at', starts_at),
            'ReminderDue:' || public_ref || ':24h:' || event_date, :now
        FROM reminded JOIN reservation ON reservation.id = reservation_id JOIN event ON event.id = event_id
    """,
}


def bare(engine: Engine, name: str) -> None:
    """All of it in one transaction: no chunks, nobody else considered, no row ever bad."""
    statement = BARE[name].replace(":now", "CAST(:now AS timestamptz)")
    with engine.begin() as connection:
        connection.execute(text(statement), {"now": NOW, "lead": LEAD} if name == "remind" else {"now": NOW})


class _Base(DeclarativeBase):
    type_annotation_map = {dict[str, Any]: JSONB}  # noqa: RUF012 - as SQLAlchemy wants it


class _Event(_Base):
    __tablename__ = "event"
    id: Mapped[int] = mapped_column(primary_key=True)
    public_id: Mapped[uuid.UUID]
    status: Mapped[str]
    starts_at: Mapped[datetime]
    ends_at: Mapped[datetime]
    closed_at: Mapped[datetime | None]


class _Reservation(_Base):
    __tablename__ = "reservation"
    id: Mapped[int] = mapped_column(primary_key=True)
    event_id: Mapped[int]
    public_ref: Mapped[str]
    status: Mapped[str]
    expires_at: Mapped[datetime]
    expired_at: Mapped[datetime | None]


class _Reminder(_Base):
    __tablename__ = "reminder"
    id: Mapped[int] = mapped_column(primary_key=True)
    reservation_id: Mapped[int]
    kind: Mapped[str]
    event_date: Mapped[datetime]
    state: Mapped[str]
    outbox_event_id: Mapped[uuid.UUID]


class _OutboxEvent(_Base):
    __tablename__ = "outbox_event"
    id: Mapped[int] = mapped_column(primary_key=True)
    event_id: Mapped[uuid.UUID] = mapped_column(server_default=FetchedValue())
    aggregate_type: Mapped[str]
    aggregate_id: Mapped[str]
    event_type: Mapped[str]
    payload: Mapped[dict[str, Any]]
    dedupe_key: Mapped[str]
    occurred_at: Mapped[datetime]


def loop(engine: Engine, name: str, sample: int) -> int:
    """The same, an object at a time with a commit each, over `sample` rows; how many it did."""
    with Session(engine) as session:
        if name == "close":
            return _close(session, sample)
        wanted = (
            select(_Reservation.id).where(_Reservation.status == "ACTIVE", _Reservation.expires_at <= NOW)
            if name == "expire"
            else select(_Reservation.id)
            .join(_Event, _Event.id == _Reservation.event_id)
            .where(_Event.status == "OPEN", _Event.starts_at > NOW, _Reservation.status == "CONFIRMED")
        )
        ids = session.scalars(wanted.limit(sample)).all()
        for row in ids:
            reservation = session.get_one(_Reservation, row)
            if name == "expire":
                _expire(session, reservation)
            else:
                _remind(session, reservation)
            session.commit()
        return len(ids)


def _close(session: Session, sample: int) -> int:
    done = 0
    for event_id in session.scalars(select(_Event.id).where(_Event.status == "OPEN", _Event.ends_at < NOW)).all():
        event = session.get_one(_Event, event_id)
        event.status, event.closed_at = "CLOSED", NOW
        _tell(session, "event", str(event.public_id), "EventClosed", {"event_id": str(event.public_id)})
        held = select(_Reservation).where(_Reservation.event_id == event_id, _Reservation.status == "ACTIVE")
        for reservation in session.scalars(held).all():
            _expire(session, reservation)
            done += 1
        session.commit()
        if done >= sample:
            break
    return done


def _expire(session: Session, reservation: _Reservation) -> None:
    reservation.status, reservation.expired_at = "EXPIRED", NOW
    _tell(session, "reservation", reservation.public_ref, "ReservationExpired", {"ref": reservation.public_ref})


def _remind(session: Session, reservation: _Reservation) -> None:
    event = session.get_one(_Event, reservation.event_id)
    told = _tell(session, "reservation", reservation.public_ref, "ReminderDue", {"ref": reservation.public_ref})
    session.flush()
    session.add(
        _Reminder(
            reservation_id=reservation.id,
            kind="24h",
            event_date=event.starts_at,
            state="QUEUED",
            outbox_event_id=told.event_id,
        )
    )


def _tell(session: Session, aggregate: str, key: str, kind: str, payload: dict[str, Any]) -> _OutboxEvent:
    told = _OutboxEvent(
        aggregate_type=aggregate,
        aggregate_id=key,
        event_type=kind,
        payload=payload,
        dedupe_key=f"{kind}:{key}",
        occurred_at=NOW,
    )
    session.add(told)
    return told
