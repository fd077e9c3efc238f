"""The end of events and reservations, by their business rules."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, text

from tests.support.rows import add_event, add_movement, add_organization, add_reservation, add_void, instant
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.ticketing.captures import money_without_ticket
from ticketflow_orch.ticketing.events import close_events, would_close
from ticketflow_orch.ticketing.lifecycle import LifecycleRules
from ticketflow_orch.ticketing.reservations import (
    expire_reservations,
    oldest_due_reservation,
    reservations_are_due,
    would_expire,
)

NOW = instant("2026-06-02T04:30")
GRACE = timedelta(minutes=30)
MICROSECOND = timedelta(microseconds=1)

# For the session that a test is about; add_movement has one of its own.
CAPTURE = text("""
    INSERT INTO money_movement (external_ref, organization_id, reservation_id, kind, currency, amount,
        commission_rate_bps, commission_tax_bps, occurred_at)
    VALUES (:ref, :organization, :held, 'CAPTURE', 'EUR', 100, 0, 0, now())
""")


def rules(now: datetime = NOW, **changes: Any) -> LifecycleRules:
    return LifecycleRules(now=now, run_id="run", **changes)


def paid(engine: Engine, **values: Any) -> tuple[int, int, int]:
    """An organization, its reservation that nobody confirmed, and the capture of its money."""
    organization = add_organization(engine)
    held = add_reservation(engine, add_event(engine, organization), public_ref="paid", **values)
    return organization, held, add_movement(engine, organization, 100, "2026-05-01T10:05", reservation_id=held)


def give_back(engine: Engine, organization: int, capture: int, amount: int = -100, **values: Any) -> int:
    """A refund of `capture` that does not name the reservation."""
    refund = {"kind": "REFUND", "reverses_id": capture} | values
    return add_movement(engine, organization, amount, "2026-05-02T10:00", **refund)


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


def test_closing_releases_what_was_given_back_and_leaves_what_was_reported_to_a_person(engine: Engine) -> None:
    organization, reported, capture = paid(engine)
    expire_reservations(engine, rules(instant("2026-05-02T00:00")))
    give_back(engine, organization, capture)
    given_back = add_reservation(engine, add_event(engine, organization))
    add_void(engine, add_movement(engine, organization, 100, "2026-05-01T10:05", reservation_id=given_back))
    assert close_events(engine, rules()).reservations_expired == 1
    assert states(engine, "reservation", reported, given_back) == ["ACTIVE", "EXPIRED"]


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


def test_a_late_arrival_in_a_closed_event_is_not_possible_and_moving_its_end_does_not_reopen_it(engine: Engine) -> None:
    event = add_event(engine, add_organization(engine))
    close_events(engine, rules())
    with engine.begin() as connection:
        connection.execute(text("UPDATE event SET ends_at = '2027-01-01Z' WHERE id = :id"), {"id": event})
    assert close_events(engine, rules()).events == 0
    assert states(engine, "event", event) == ["CLOSED"]


def told_by(monkeypatch: pytest.MonkeyPatch, database_now: datetime, difference: float = 0) -> None:
    """What both clocks say, in place of those of this machine."""
    monkeypatch.setattr("ticketflow_orch.periods.two_clocks.clocks", lambda _: (database_now, difference))


def past(engine: Engine, organization: int, days: int) -> int:
    """An event that ended so many days ago, which its reference tells."""
    ended = NOW - timedelta(days=days)
    times = {"starts_at": ended - timedelta(hours=2), "ends_at": ended}
    return add_event(engine, organization, external_ref=f"over-{days}", **times)


def end(engine: Engine, which: str, **given: Any) -> object:
    """What came of ending what is over, reservations or events."""
    return {"expire": expire_reservations, "close": close_events}[which](engine, rules(**given))


@pytest.mark.parametrize("which", ["expire", "close"])
def test_what_cannot_be_undone_is_judged_by_the_earlier_of_both_clocks(
    engine: Engine, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    evening = add_event(engine, add_organization(engine), ends_at=NOW - MICROSECOND)
    held = add_reservation(engine, evening, expires_at=NOW)
    told_by(monkeypatch, NOW - 2 * MICROSECOND, difference=59)
    end(engine, which)
    assert (states(engine, "event", evening), states(engine, "reservation", held)) == (["OPEN"], ["ACTIVE"])
    told_by(monkeypatch, NOW + timedelta(days=30))
    end(engine, which, now=NOW - 2 * MICROSECOND)
    assert (states(engine, "event", evening), states(engine, "reservation", held)) == (["OPEN"], ["ACTIVE"])
    end(engine, which)
    assert states(engine, "reservation", held) == ["EXPIRED"]


@pytest.mark.parametrize("which", ["expire", "close"])
@pytest.mark.parametrize("difference", [60.5, -60.5])
def test_where_both_clocks_differ_by_more_than_a_minute_nothing_is_ended(
    engine: Engine, which: str, difference: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    evening = past(engine, add_organization(engine), 1)
    held = add_reservation(engine, evening, expires_at=NOW - timedelta(days=1))
    told_by(monkeypatch, NOW, difference)
    with pytest.raises(TicketflowError, match=rf"more than 60 s {which} nothing; correct the clock that is wrong"):
        end(engine, which)
    assert (states(engine, "event", evening), states(engine, "reservation", held)) == (["OPEN"], ["ACTIVE"])


@pytest.mark.every_server
def test_what_would_be_done_is_what_is_done(engine: Engine) -> None:
    organization = add_organization(engine)
    over = [past(engine, organization, day) for day in (1, 2)]
    add_event(engine, organization, ends_at=NOW + timedelta(days=1))
    for number, event_id in enumerate(over):
        add_reservation(engine, event_id, public_ref=f"held-{number}", expires_at=NOW + timedelta(days=1))
    later = add_event(engine, organization, ends_at=NOW + timedelta(days=1))
    add_reservation(engine, later, public_ref="due", expires_at=NOW)
    add_reservation(engine, later, public_ref="stuck", expires_at=NOW, payment_started_at=NOW - GRACE)
    add_reservation(engine, later, public_ref="paying", expires_at=NOW, payment_started_at=NOW)
    paid(engine, expires_at=NOW - GRACE)

    closing, expiring = would_close(engine, rules()), would_expire(engine, rules())
    assert (closing.events, closing.reservations, closing.first[:2]) == (3, 2, ("over-2", "over-1"))
    assert (expiring.reservations, expiring.stuck, expiring.first) == (1, 2, ("paid", "due", "stuck"))
    assert told(engine) == []
    closed, expired = close_events(engine, rules()), expire_reservations(engine, rules())
    assert (closed.events, closed.reservations_expired) == (closing.events, closing.reservations)
    assert (expired.reservations, expired.stuck) == (expiring.reservations, expiring.stuck)
    assert (would_close(engine, rules()).events, would_expire(engine, rules()).reservations) == (0, 0)
