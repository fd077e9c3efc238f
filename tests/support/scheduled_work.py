"""One thing to do for each job on a schedule that works by the minute or day, and what its effect is."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import Engine, text

from tests.support.rows import add_event, add_organization, add_reservation, instant

NOW = instant("2026-06-02T02:30")
EFFECT = {
    "close_events_job": [("EventClosed", "over")],
    "expire_reservations_job": [("ReservationExpired", "held")],
    "send_reminders_job": [("ReminderDue", "sold:24h:2026-06-03")],
}


def add_work(engine: Engine) -> None:
    """One thing to do for each job: an event that is over, a reservation whose time is up, a reminder."""
    organization = add_organization(engine)
    add_event(
        engine, organization, external_ref="over", starts_at=NOW - timedelta(hours=3), ends_at=NOW - timedelta(hours=1)
    )
    later = add_event(
        engine,
        organization,
        external_ref="later",
        starts_at=NOW + timedelta(hours=20),
        ends_at=NOW + timedelta(hours=22),
    )
    add_reservation(engine, later, public_ref="held", expires_at=NOW - timedelta(minutes=1))
    add_reservation(engine, later, public_ref="sold", status="CONFIRMED", confirmed_at=NOW - timedelta(days=9))
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO reminder_kind (kind, lead, enabled_at) VALUES ('24h', interval '24 hours', '2026-01-01Z')"
            )
        )


def effects(engine: Engine) -> list[tuple[str, str]]:
    with engine.connect() as connection:
        rows = connection.execute(
            text("""
                SELECT event_type, coalesce(external_ref, aggregate_id) FROM outbox_event
                LEFT JOIN event ON CAST(public_id AS text) = aggregate_id ORDER BY 1, 2
            """)
        )
        return [tuple(row) for row in rows]


def firings(engine: Engine, job: str) -> list[str]:
    with engine.connect() as connection:
        return list(
            connection.execute(
                text("SELECT outcome FROM job_firing WHERE job = :job ORDER BY id"), {"job": job.removesuffix("_job")}
            ).scalars()
        )
