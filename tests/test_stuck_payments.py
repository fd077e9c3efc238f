"""Stuck payments, resolved by hand."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, text

from tests.rows import add_event, add_movement, add_organization, add_reservation, add_void, instant
from ticketflow_orch.database import transaction
from ticketflow_orch.errors import InputError
from ticketflow_orch.stuck_payments import confirm, expire, stuck_payments

NOW = instant("2026-06-02T04:30")


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
        return list(connection.execute(text("SELECT dedupe_key FROM outbox_event")).scalars())


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
    assert told(engine) == ["ReservationExpired:stuck"]
    with engine.connect() as connection:
        assert stuck_payments(connection) == ()


@pytest.mark.every_server
def test_one_that_came_all_the_same_is_confirmed(engine: Engine) -> None:
    add_stuck(engine)
    with transaction(engine) as connection:
        confirm(connection, "stuck", NOW)
    assert reservation(engine, "status", "confirmed_at") == ("CONFIRMED", NOW)
    assert told(engine) == []


def test_one_whose_money_is_here_is_not_released_until_it_was_given_back(engine: Engine) -> None:
    organization, stuck = add_stuck(engine)
    capture = add_movement(
        engine, organization, 100, "2026-05-01T12:00", reservation_id=stuck, external_ref="capture-1"
    )
    with pytest.raises(InputError, match="has the capture 'capture-1'"), transaction(engine) as connection:
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
    with pytest.raises(InputError, match="has the capture"), transaction(engine) as connection:
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
    with pytest.raises(InputError, match=why), transaction(engine) as connection:
        expire(connection, "stuck", NOW, "by hand")
    with pytest.raises(InputError, match=why), transaction(engine) as connection:
        confirm(connection, "stuck", NOW)
    assert reservation(engine, "*") == before


def test_a_reference_that_nobody_has_is_refused(engine: Engine) -> None:
    with pytest.raises(InputError, match="There is no reservation 'typo'"), transaction(engine) as connection:
        confirm(connection, "typo", NOW)
