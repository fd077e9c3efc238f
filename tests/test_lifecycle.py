"""The end of events and reservations, by their business rules."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, text

from tests.rows import add_event, add_movement, add_organization, add_reservation, instant
from ticketflow_orch.lifecycle import LifecycleRules, close_events, expire_reservations, money_without_ticket

NOW = instant("2026-06-02T04:30")

# For the session that a test is about; add_movement has one of its own.
CAPTURE = text("""
    INSERT INTO money_movement (external_ref, organization_id, reservation_id, kind, currency, amount,
        commission_rate_bps, commission_tax_bps, occurred_at)
    VALUES (:ref, :organization, :held, 'CAPTURE', 'EUR', 100, 0, 0, now())
""")


def rules(now: datetime = NOW, **changes: Any) -> LifecycleRules:
    return LifecycleRules(now=now, run_id="run", **changes)


def states(engine: Engine, table: str, *ids: int) -> list[str]:
    with engine.connect() as connection:
        rows = connection.execute(text(f"SELECT id, status FROM {table} WHERE id = ANY (:ids)"), {"ids": list(ids)})
        found = {row.id: row.status for row in rows}
    return [found[one] for one in ids]


def told(engine: Engine) -> list[tuple[Any, ...]]:
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT event_type, aggregate_id FROM outbox_event ORDER BY 1, 2"))
        return [tuple(row) for row in rows]


@pytest.mark.every_server
def test_an_event_whose_end_is_past_is_closed_with_its_reservations_once(engine: Engine) -> None:
    organization = add_organization(engine)
    past, running = (
        add_event(engine, organization),
        add_event(engine, organization, ends_at=instant("2026-06-02T05:00")),
    )
    held, other = add_reservation(engine, past, public_ref="held"), add_reservation(engine, running)
    paying = add_reservation(engine, past, payment_started_at=instant("2026-06-02T04:25"))
    result = close_events(engine, rules())
    assert (result.events, result.reservations_expired, result.left) == (1, 1, 0)
    assert states(engine, "event", past, running) == ["CLOSED", "OPEN"]
    assert states(engine, "reservation", held, other, paying) == ["EXPIRED", "ACTIVE", "ACTIVE"]
    assert [kind for kind, _ in told(engine)] == ["EventClosed", "ReservationExpired"]
    again = close_events(engine, rules())
    assert (again.events, again.reservations_expired) == (0, 0)
    assert len(told(engine)) == 2


@pytest.mark.parametrize("status", ["DRAFT", "CANCELLED"])
def test_only_open_events_are_closed(engine: Engine, status: str) -> None:
    event = add_event(engine, add_organization(engine), status=status)
    assert close_events(engine, rules()).events == 0
    assert states(engine, "event", event) == [status]


def test_an_event_is_judged_by_its_end_to_the_microsecond_after_its_grace(engine: Engine) -> None:
    event = add_event(engine, add_organization(engine), ends_at=NOW - timedelta(hours=1))
    grace = timedelta(hours=1)
    assert close_events(engine, rules(closing_grace=grace)).events == 0
    assert close_events(engine, rules(NOW + timedelta(microseconds=1), closing_grace=grace)).events == 1
    assert states(engine, "event", event) == ["CLOSED"]


@pytest.mark.every_server
def test_a_reservation_whose_time_is_up_is_expired_once(engine: Engine) -> None:
    event = add_event(engine, add_organization(engine), ends_at=instant("2026-07-01T00:00"))
    due = add_reservation(engine, event, public_ref="due", expires_at=NOW)
    later = add_reservation(engine, event, expires_at=NOW + timedelta(microseconds=1))
    result = expire_reservations(engine, rules())
    assert (result.reservations, result.stuck, result.left) == (1, 0, 0)
    assert states(engine, "reservation", due, later) == ["EXPIRED", "ACTIVE"]
    assert expire_reservations(engine, rules()).reservations == 0
    assert told(engine) == [("ReservationExpired", "due")]


def test_a_payment_in_flight_is_left_alone_and_reported_once_when_it_is_stuck(engine: Engine) -> None:
    event = add_event(engine, add_organization(engine), ends_at=instant("2026-07-01T00:00"))
    paying = add_reservation(engine, event, public_ref="paying", payment_started_at=NOW - timedelta(minutes=30))
    assert expire_reservations(engine, rules(NOW - timedelta(microseconds=1))).stuck == 0
    assert expire_reservations(engine, rules()).stuck == 1
    assert expire_reservations(engine, rules(NOW + timedelta(days=9))).stuck == 0
    assert states(engine, "reservation", paying) == ["ACTIVE"]
    assert told(engine) == [("ReservationPaymentStuck", "paying")]


def test_a_reservation_with_a_capture_is_never_expired(engine: Engine) -> None:
    organization = add_organization(engine)
    event = add_event(engine, organization)
    paid = add_reservation(engine, event)
    add_movement(engine, organization, 100, "2026-05-01T10:05", reservation_id=paid)
    assert expire_reservations(engine, rules()).reservations == 0
    assert close_events(engine, rules()).reservations_expired == 0
    assert states(engine, "reservation", paid) == ["ACTIVE"]


@pytest.mark.every_server
def test_a_capture_after_the_expiry_is_told_once_and_listed_until_it_is_refunded(engine: Engine) -> None:
    organization = add_organization(engine)
    held = add_reservation(engine, add_event(engine, organization), public_ref="held")
    expire_reservations(engine, rules())
    late = add_movement(engine, organization, 100, "2026-06-02T05:00", reservation_id=held, external_ref="late")
    assert ("PaymentAfterExpiry", "held") in told(engine)
    with engine.connect() as connection:
        assert [money.movement for money in money_without_ticket(connection)] == ["late"]
    add_movement(engine, organization, -100, "2026-06-03T05:00", kind="REFUND", reverses_id=late, reservation_id=held)
    with engine.connect() as connection:
        assert money_without_ticket(connection) == ()


def test_no_temporary_table_takes_what_a_late_capture_tells(engine: Engine) -> None:
    organization = add_organization(engine)
    held = add_reservation(engine, add_event(engine, organization), public_ref="held")
    expire_reservations(engine, rules())
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TEMPORARY TABLE outbox_event AS TABLE public.outbox_event WITH NO DATA")
        connection.execute(CAPTURE, {"ref": "late", "organization": organization, "held": held})
        connection.exec_driver_sql("DROP TABLE pg_temp.outbox_event")
    assert ("PaymentAfterExpiry", "held") in told(engine)


def test_a_capture_and_the_expiry_of_its_reservation_wait_for_each_other(engine: Engine) -> None:
    organization = add_organization(engine)
    held = add_reservation(engine, add_event(engine, organization))
    with engine.connect() as paying, paying.begin():
        paying.execute(CAPTURE, {"ref": "racing", "organization": organization, "held": held})
        assert expire_reservations(engine, rules()).reservations == 0
    assert expire_reservations(engine, rules()).reservations == 0
    assert states(engine, "reservation", held) == ["ACTIVE"]


def test_a_late_arrival_in_a_closed_event_is_not_possible_and_moving_its_end_does_not_reopen_it(engine: Engine) -> None:
    event = add_event(engine, add_organization(engine))
    close_events(engine, rules())
    with engine.begin() as connection:
        connection.execute(text("UPDATE event SET ends_at = '2027-01-01Z' WHERE id = :id"), {"id": event})
    assert close_events(engine, rules()).events == 0
    assert states(engine, "event", event) == ["CLOSED"]
