"""Events whose end is past are closed once, with what is still held for them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import Engine, text

from tests.support.lifecycle import NOW, give_back, paid, rules, states, told
from tests.support.rows import add_event, add_movement, add_organization, add_reservation, add_void, instant
from ticketflow_orch.ticketing.events import close_events
from ticketflow_orch.ticketing.reservations import (
    expire_reservations,
)


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


def test_closing_releases_what_was_given_back_and_leaves_what_was_reported_to_a_person(engine: Engine) -> None:
    organization, reported, capture = paid(engine)
    expire_reservations(engine, rules(instant("2026-05-02T00:00")))
    give_back(engine, organization, capture)
    given_back = add_reservation(engine, add_event(engine, organization))
    add_void(engine, add_movement(engine, organization, 100, "2026-05-01T10:05", reservation_id=given_back))
    assert close_events(engine, rules()).reservations_expired == 1
    assert states(engine, "reservation", reported, given_back) == ["ACTIVE", "EXPIRED"]


def test_a_late_arrival_in_a_closed_event_is_not_possible_and_moving_its_end_does_not_reopen_it(engine: Engine) -> None:
    event = add_event(engine, add_organization(engine))
    close_events(engine, rules())
    with engine.begin() as connection:
        connection.execute(text("UPDATE event SET ends_at = '2027-01-01Z' WHERE id = :id"), {"id": event})
    assert close_events(engine, rules()).events == 0
    assert states(engine, "event", event) == ["CLOSED"]
