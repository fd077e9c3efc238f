"""Captures that came too late are reported once and listed until they are refunded."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from tests.support.lifecycle import CAPTURE, give_back, rules, told
from tests.support.rows import add_event, add_movement, add_organization, add_reservation, add_void
from ticketflow_orch.ticketing.captures import money_without_ticket
from ticketflow_orch.ticketing.reservations import (
    expire_reservations,
)


@pytest.mark.every_server
def test_a_capture_after_the_expiry_is_told_once_and_listed_until_it_is_refunded(engine: Engine) -> None:
    organization = add_organization(engine)
    held = add_reservation(engine, add_event(engine, organization), public_ref="held")
    expire_reservations(engine, rules())
    late = add_movement(engine, organization, 100, "2026-06-02T05:00", reservation_id=held, external_ref="late")
    assert ("PaymentAfterExpiry", "late") in told(engine)
    with engine.connect() as connection:
        assert [money.movement for money in money_without_ticket(connection)] == ["late"]
    add_movement(engine, organization, -100, "2026-06-03T05:00", kind="REFUND", reverses_id=late, reservation_id=held)
    with engine.connect() as connection:
        assert money_without_ticket(connection) == ()


def test_a_late_capture_whose_refund_was_voided_is_listed_again(engine: Engine) -> None:
    organization = add_organization(engine)
    held = add_reservation(engine, add_event(engine, organization))
    expire_reservations(engine, rules())
    late = add_movement(engine, organization, 100, "2026-06-02T05:00", reservation_id=held, external_ref="late")
    add_void(engine, give_back(engine, organization, late))
    with engine.connect() as connection:
        assert [money.movement for money in money_without_ticket(connection)] == ["late"]


def test_no_temporary_table_takes_what_a_late_capture_tells(engine: Engine) -> None:
    organization = add_organization(engine)
    held = add_reservation(engine, add_event(engine, organization), public_ref="held")
    expire_reservations(engine, rules())
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TEMPORARY TABLE outbox_event AS TABLE public.outbox_event WITH NO DATA")
        connection.execute(CAPTURE, {"ref": "late", "organization": organization, "held": held})
        connection.exec_driver_sql("DROP TABLE pg_temp.outbox_event")
    assert ("PaymentAfterExpiry", "late") in told(engine)
