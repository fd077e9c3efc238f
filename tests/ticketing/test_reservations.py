"""Reservations expire, unless a payment or money holds them; what is stuck is reported once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, text

from tests.support.lifecycle import CAPTURE, GRACE, MICROSECOND, NOW, give_back, paid, rules, states, told
from tests.support.rows import add_event, add_movement, add_organization, add_reservation, add_void, instant
from ticketflow_orch.outbox.events import OutboxEvent, append
from ticketflow_orch.ticketing.events import close_events
from ticketflow_orch.ticketing.reservations import (
    expire_reservations,
    oldest_due_reservation,
    reservations_are_due,
    would_expire,
)


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


def test_a_reservation_whose_expiry_was_announced_before_expires_and_is_not_announced_again(engine: Engine) -> None:
    event = add_event(engine, add_organization(engine), ends_at=instant("2026-07-01T00:00"))
    held = [add_reservation(engine, event, public_ref=ref) for ref in ("known", "new")]
    with engine.begin() as connection:
        append(
            connection,
            OutboxEvent(
                "reservation", "known", "ReservationExpired", {"ref": "known"}, "ReservationExpired:known", NOW
            ),
        )
    assert expire_reservations(engine, rules()).reservations == 2
    assert states(engine, "reservation", *held) == ["EXPIRED", "EXPIRED"]
    assert sorted(told(engine)) == [("ReservationExpired", "known"), ("ReservationExpired", "new")]


def test_a_payment_in_flight_is_left_alone_and_reported_once_when_it_is_stuck(engine: Engine) -> None:
    event = add_event(engine, add_organization(engine), ends_at=instant("2026-07-01T00:00"))
    paying = add_reservation(engine, event, public_ref="paying", payment_started_at=NOW - timedelta(minutes=30))
    assert expire_reservations(engine, rules(NOW - timedelta(microseconds=1))).stuck == 0
    assert expire_reservations(engine, rules()).stuck == 1
    assert expire_reservations(engine, rules(NOW + timedelta(days=9))).stuck == 0
    assert states(engine, "reservation", paying) == ["ACTIVE"]
    assert told(engine) == [("ReservationPaymentStuck", "paying")]


@pytest.mark.parametrize("captured", [False, True], ids=["unpaid", "paid"])
def test_a_payment_that_is_to_begin_years_later_is_reported_when_one_that_began_at_the_expiry_is(
    engine: Engine, captured: bool
) -> None:
    mistaken = {"payment_started_at": NOW + timedelta(days=9999), "expires_at": NOW - GRACE}
    organization = add_organization(engine)
    held = add_reservation(engine, add_event(engine, organization), public_ref="paying", **mistaken)
    if captured:
        add_movement(engine, organization, 100, "2026-06-02T04:05", reservation_id=held)
    before = rules(NOW - MICROSECOND)
    assert expire_reservations(engine, before).stuck == 0
    with engine.connect() as connection:
        assert not reservations_are_due(connection, before)
        assert reservations_are_due(connection, rules())
        assert oldest_due_reservation(connection, rules()) == NOW
    assert would_expire(engine, rules()).stuck == 1
    assert [expire_reservations(engine, rules()).stuck for _ in range(2)] == [1, 0]
    assert states(engine, "reservation", held) == ["ACTIVE"]
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
@pytest.mark.parametrize(
    ("values", "grace_ends"),
    [
        ({"expires_at": NOW}, NOW + GRACE),
        ({"expires_at": NOW, "payment_started_at": NOW - timedelta(minutes=1)}, NOW + GRACE - timedelta(minutes=1)),
    ],
)
def test_money_whose_reservation_nobody_confirmed_is_reported_once_when_its_grace_is_over(
    engine: Engine, values: dict[str, Any], grace_ends: datetime
) -> None:
    _, held, _ = paid(engine, **values)
    early = expire_reservations(engine, rules(grace_ends - MICROSECOND))
    assert (early.reservations, early.stuck, early.left, told(engine)) == (0, 0, 0, [])
    result = expire_reservations(engine, rules(grace_ends))
    assert (result.reservations, result.stuck, result.left) == (0, 1, 0)
    again = expire_reservations(engine, rules(NOW + timedelta(days=60)))
    assert (again.reservations, again.stuck, again.left) == (0, 0, 0)
    assert states(engine, "reservation", held) == ["ACTIVE"]
    assert told(engine) == [("ReservationPaymentStuck", "paid")]


def test_two_runs_at_once_report_a_payment_once(engine: Engine) -> None:
    paid(engine)
    with ThreadPoolExecutor(4) as threads:
        found = [threads.submit(expire_reservations, engine, rules()) for _ in range(4)]
    assert sum(run.result().stuck for run in found) == 1
    assert told(engine) == [("ReservationPaymentStuck", "paid")]


def test_what_is_told_of_money_says_when_its_payment_began_if_anybody_knows(engine: Engine) -> None:
    paid(engine)
    expire_reservations(engine, rules())
    with engine.connect() as connection:
        payload = connection.execute(text("SELECT payload FROM outbox_event")).scalar_one()
    assert payload == {"ref": "paid", "payment_started_at": None}


@pytest.mark.parametrize("began", [None, instant("2026-05-01T10:04")])
@pytest.mark.parametrize("how", ["refunded", "refunded in two parts", "voided", "charged back"])
def test_a_reservation_whose_money_was_all_given_back_expires(engine: Engine, how: str, began: datetime | None) -> None:
    organization, held, capture = paid(engine, payment_started_at=began)
    if how == "voided":
        add_void(engine, capture)
    elif how == "refunded in two parts":
        give_back(engine, organization, capture, -60)
        give_back(engine, organization, capture, -40)
    else:
        give_back(engine, organization, capture, kind="REFUND" if how == "refunded" else "CHARGEBACK")
    result = expire_reservations(engine, rules())
    assert (result.reservations, result.stuck, result.left) == (1, 0, 0)
    assert expire_reservations(engine, rules()).reservations == 0
    assert states(engine, "reservation", held) == ["EXPIRED"]
    assert told(engine) == [("ReservationExpired", "paid")]


def test_money_that_was_given_back_before_the_grace_is_over_holds_nothing_until_then(engine: Engine) -> None:
    organization, held, capture = paid(engine, expires_at=NOW)
    give_back(engine, organization, capture)
    assert expire_reservations(engine, rules()).reservations == 1
    assert states(engine, "reservation", held) == ["EXPIRED"]


def test_money_of_which_a_part_was_kept_or_that_came_again_is_reported(engine: Engine) -> None:
    organization, part, capture = paid(engine)
    give_back(engine, organization, capture, -99)
    event = add_event(engine, organization)
    unrefunded, won = add_reservation(engine, event), add_reservation(engine, event)
    first, second = (
        add_movement(engine, organization, 100, "2026-05-01T10:05", reservation_id=held) for held in (unrefunded, won)
    )
    add_void(engine, give_back(engine, organization, first))
    lost = give_back(engine, organization, second, kind="CHARGEBACK")
    give_back(engine, organization, lost, 100, kind="CHARGEBACK_REVERSAL")
    assert close_events(engine, rules()).reservations_expired == 0
    result = expire_reservations(engine, rules())
    assert (result.reservations, result.stuck) == (0, 3)
    assert states(engine, "reservation", part, unrefunded, won) == ["ACTIVE"] * 3


def test_a_payment_that_began_after_an_earlier_one_was_given_back_may_still_bring_money(engine: Engine) -> None:
    _, held, capture = paid(engine, payment_started_at=instant("2026-05-01T10:10"))
    add_void(engine, capture)
    result = expire_reservations(engine, rules())
    assert (result.reservations, result.stuck) == (0, 1)
    assert states(engine, "reservation", held) == ["ACTIVE"]


def test_a_capture_and_the_expiry_of_its_reservation_wait_for_each_other(engine: Engine) -> None:
    organization = add_organization(engine)
    held = add_reservation(engine, add_event(engine, organization))
    with engine.connect() as paying, paying.begin():
        paying.execute(CAPTURE, {"ref": "racing", "organization": organization, "held": held})
        result = expire_reservations(engine, rules())
        assert (result.reservations, result.stuck) == (0, 0)
    result = expire_reservations(engine, rules())
    assert (result.reservations, result.stuck) == (0, 1)
    assert states(engine, "reservation", held) == ["ACTIVE"]
