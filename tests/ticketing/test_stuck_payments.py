"""Stuck payments, resolved by hand."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, text

from tests.support.rows import add_event, add_movement, add_organization, add_reservation, add_void, instant
from tests.support.sql_statements import execute
from ticketflow_orch.db.engine import transaction
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.ticketing.lifecycle import LifecycleRules
from ticketflow_orch.ticketing.reservations import expire_reservations
from ticketflow_orch.ticketing.stuck_payments import confirm, expire, stuck_payments

NOW = instant("2026-06-02T04:30")
RESOLVED = "ReservationPaymentResolved:stuck:2026-05-01T10:14:00.000000Z"


def add_stuck(engine: Engine, reference: str = "stuck", **values: Any) -> tuple[int, int]:
    """The organization and its reservation whose payment was reported as stuck."""
    organization = add_organization(engine)
    reported = {"payment_started_at": instant("2026-05-01T10:14"), "stuck_reported_at": instant("2026-05-01T11:00")}
    event = add_event(engine, organization)
    return organization, add_reservation(engine, event, public_ref=reference, **reported | values)


def reservation(engine: Engine, *columns: str) -> tuple[Any, ...]:
    with engine.connect() as connection:
        return tuple(connection.execute(text(f"SELECT {', '.join(columns)} FROM reservation")).one())


def told(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.execute(text("SELECT dedupe_key FROM outbox_event ORDER BY id")).scalars())


def test_those_that_wait_for_a_person_are_listed(engine: Engine) -> None:
    organization, captured = add_stuck(engine, "captured")
    add_movement(engine, organization, 100, "2026-05-01T12:00", reservation_id=captured)
    add_stuck(engine, "waiting")
    add_stuck(engine, "in flight", stuck_reported_at=None)
    with engine.connect() as connection:
        found = stuck_payments(connection)
    assert [(one.reservation, one.captured) for one in found] == [("captured", True), ("waiting", False)]


@pytest.mark.every_server
def test_one_that_never_came_is_released_and_told_at_once(engine: Engine) -> None:
    add_stuck(engine)
    with transaction(engine) as connection:
        expire(connection, "stuck", NOW, "by hand")
    assert reservation(engine, "status", "expired_at", "expired_by") == ("EXPIRED", NOW, "by hand")
    assert told(engine) == [RESOLVED, "ReservationExpired:stuck"]
    with engine.connect() as connection:
        assert stuck_payments(connection) == ()


@pytest.mark.every_server
def test_one_that_came_all_the_same_is_confirmed(engine: Engine) -> None:
    add_stuck(engine)
    with transaction(engine) as connection:
        confirm(connection, "stuck", NOW)
    assert reservation(engine, "status", "confirmed_at") == ("CONFIRMED", NOW)
    assert told(engine) == [RESOLVED]


def test_one_whose_money_is_here_is_not_released_until_it_was_given_back(engine: Engine) -> None:
    organization, stuck = add_stuck(engine)
    capture = add_movement(
        engine, organization, 100, "2026-05-01T12:00", reservation_id=stuck, external_ref="capture-1"
    )
    with pytest.raises(TicketflowError, match="has the capture 'capture-1'"), transaction(engine) as connection:
        expire(connection, "stuck", NOW, "by hand")
    assert (reservation(engine, "status"), told(engine)) == (("ACTIVE",), [])

    add_movement(
        engine, organization, -100, "2026-05-02T12:00", kind="REFUND", reverses_id=capture, reservation_id=stuck
    )
    with transaction(engine) as connection:
        expire(connection, "stuck", NOW, "by hand")
    assert reservation(engine, "status") == ("EXPIRED",)


def test_one_whose_refund_was_voided_is_not_released(engine: Engine) -> None:
    organization, stuck = add_stuck(engine)
    capture = add_movement(engine, organization, 100, "2026-05-01T12:00", reservation_id=stuck)
    refund = add_movement(engine, organization, -100, "2026-05-02T12:00", kind="REFUND", reverses_id=capture)
    add_void(engine, refund)
    with engine.connect() as connection:
        assert [one.captured for one in stuck_payments(connection)] == [True]
    with pytest.raises(TicketflowError, match="has the capture"), transaction(engine) as connection:
        expire(connection, "stuck", NOW, "by hand")


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"stuck_reported_at": None}, "is not stuck .the reservation is ACTIVE."),
        ({"status": "CONFIRMED", "confirmed_at": NOW}, "is not stuck .the reservation is CONFIRMED."),
    ],
)
def test_only_a_stuck_one_is_resolved(engine: Engine, values: dict[str, Any], why: str) -> None:
    add_stuck(engine, **values)
    before = reservation(engine, "*")
    with pytest.raises(TicketflowError, match=why), transaction(engine) as connection:
        expire(connection, "stuck", NOW, "by hand")
    with pytest.raises(TicketflowError, match=why), transaction(engine) as connection:
        confirm(connection, "stuck", NOW)
    assert reservation(engine, "*") == before


def test_a_reference_that_nobody_has_is_refused(engine: Engine) -> None:
    with pytest.raises(TicketflowError, match="There is no reservation 'typo'"), transaction(engine) as connection:
        confirm(connection, "typo", NOW)


# --- The application ends or begins a payment itself


CLEARED = "UPDATE reservation SET payment_started_at = NULL"
AGAIN = "UPDATE reservation SET payment_started_at = '2026-06-02 04:00Z'"


@pytest.mark.every_server
@pytest.mark.parametrize(
    "change",
    [
        CLEARED,
        AGAIN,
        "UPDATE reservation SET status = 'CONFIRMED', confirmed_at = now()",
        "UPDATE reservation SET status = 'CANCELLED'",
    ],
)
def test_a_report_is_taken_back_once_when_the_application_ends_the_payment(engine: Engine, change: str) -> None:
    add_stuck(engine)
    for _ in range(2):
        execute(engine, change)
    assert (reservation(engine, "stuck_reported_at"), told(engine)) == ((None,), [RESOLVED])
    with engine.connect() as connection:
        assert stuck_payments(connection) == ()


def test_one_whose_payment_is_cleared_expires_like_any_other(engine: Engine) -> None:
    add_stuck(engine)
    execute(engine, CLEARED)
    assert expire_reservations(engine, LifecycleRules(NOW, "run")).reservations == 1
    assert told(engine) == [RESOLVED, "ReservationExpired:stuck"]


def test_one_whose_payment_begins_again_has_its_grace_again_and_is_reported_again(engine: Engine) -> None:
    add_stuck(engine, stuck_reported_at=None)
    assert expire_reservations(engine, LifecycleRules(NOW, "run")).stuck == 1
    execute(engine, AGAIN)
    for minute in (0, 29, 30):
        found = expire_reservations(engine, LifecycleRules(instant(f"2026-06-02T04:{minute:02}"), "run"))
        assert (found.reservations, found.stuck) == (0, int(minute == 30))
    assert told(engine) == [
        "ReservationPaymentStuck:stuck:2026-05-01T10:14:00.000000Z",
        RESOLVED,
        "ReservationPaymentStuck:stuck:2026-06-02T04:00:00.000000Z",
    ]


def test_what_is_no_end_of_a_payment_takes_no_report_back(engine: Engine) -> None:
    add_stuck(engine)
    execute(engine, "UPDATE reservation SET quantity = 3, payment_started_at = payment_started_at, status = status")
    assert (len(told(engine)), reservation(engine, "stuck_reported_at")[0] is not None) == (0, True)
