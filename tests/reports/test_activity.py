"""The effect log: what it finds, in which order, and that it scans no outbox for it."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest
from sqlalchemy import Engine, event, text

from tests.support.rows import add_event, add_movement, add_organization, add_reservation, instant
from tests.support.settled import settle
from tests.support.sql_statements import deliver, execute
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.reports.activity import Effect, effects_on_event, effects_on_organization, effects_on_reservation
from ticketflow_orch.ticketing.events import close_events
from ticketflow_orch.ticketing.lifecycle import LifecycleRules
from ticketflow_orch.ticketing.reminders import ReminderRules, send_reminders

START = instant("2026-06-01T18:00")
CLOSING = instant("2026-06-02T04:30")


@pytest.fixture
def evening(engine: Engine) -> Engine:
    """An event with a buyer who was reminded and one who never paid, closed the day after."""
    organization = add_organization(engine, external_ref="choir")
    concert = add_event(engine, organization, external_ref="concert", starts_at=START)
    add_reservation(engine, concert, public_ref="buyer", status="CONFIRMED", confirmed_at=instant("2026-05-01T10:05"))
    add_reservation(engine, concert, public_ref="dreamer")
    add_reservation(engine, add_event(engine, organization, external_ref="other"), public_ref="somebody else")
    execute(engine, "INSERT INTO reminder_kind VALUES ('24h', '24 hours', '2026-01-01Z')")
    send_reminders(engine, ReminderRules(START - timedelta(hours=24), {"24h": timedelta(hours=24)}))
    close_events(engine, LifecycleRules(CLOSING, run_id="run-7"))
    return engine


def short(effects: tuple[Effect, ...]) -> set[tuple[str, str, str, str]]:
    return {(effect.who, effect.what, effect.state, effect.key) for effect in effects}


@pytest.mark.every_server
def test_a_reservation_shows_what_it_was_told_and_under_which_keys(evening: Engine) -> None:
    with evening.connect() as connection:
        effects = effects_on_reservation(connection, "buyer")
    assert short(effects) == {
        ("buyer", "reminder", "QUEUED", "buyer/24h/2026-06-01"),
        ("buyer", "ReminderDue", "PENDING", "ReminderDue:buyer:24h:2026-06-01"),
    }
    assert len({effect.event_id for effect in effects}) == 1


def test_a_reservation_that_ended_shows_when_and_by_which_run(evening: Engine) -> None:
    with evening.connect() as connection:
        effects = effects_on_reservation(connection, "dreamer")
    assert short(effects) == {
        ("dreamer", "expired", "EXPIRED", "dreamer"),
        ("dreamer", "ReservationExpired", "PENDING", "ReservationExpired:dreamer"),
    }
    assert [(effect.at, effect.run_id) for effect in effects if effect.what == "expired"] == [(CLOSING, "run-7")]


def test_a_reservation_shows_the_event_of_money_that_came_after_its_end(evening: Engine) -> None:
    with evening.connect() as connection:
        held = connection.execute(
            text(
                "SELECT reservation.id, organization_id FROM reservation JOIN event "
                "ON event.id = event_id WHERE public_ref = 'dreamer'"
            )
        ).one()
    late = {"reservation_id": held.id, "external_ref": "late"}
    add_movement(evening, held.organization_id, 100, "2026-06-03T10:00", **late)
    with evening.connect() as connection:
        effects = effects_on_reservation(connection, "dreamer")
    assert ("dreamer", "PaymentAfterExpiry", "PENDING", "PaymentAfterExpiry:late") in short(effects)


def test_an_event_shows_itself_and_its_reservations_the_oldest_first(evening: Engine) -> None:
    with evening.connect() as connection:
        effects = effects_on_event(connection, "concert")
        last = effects_on_event(connection, "concert", limit=2)
    assert {effect.who for effect in effects} == {"concert", "buyer", "dreamer"}
    assert {effect.what for effect in effects if effect.who == "concert"} == {"closed", "EventClosed"}
    assert all(one.at <= another.at for one, another in pairwise(effects))
    assert last == effects[-2:]


def test_an_organization_shows_its_ledger_and_its_events(evening: Engine) -> None:
    with evening.connect() as connection:
        [organization] = connection.execute(text("SELECT id FROM organization")).scalars()
    add_movement(evening, organization, 100_000, "2026-03-10T10:00")
    settle(evening)
    with evening.connect() as connection:
        effects = effects_on_organization(connection, "choir")
    assert ("choir", "settlement: net 880.00 EUR", "POSTED", "2026-03/EUR/2026-03/0") in short(effects)
    assert {effect.run_id for effect in effects if effect.state == "POSTED"} == {"run"}
    assert {effect.who for effect in effects} == {"choir", "concert", "other"}


def test_an_event_that_was_delivered_says_when(evening: Engine) -> None:
    deliver(evening, "'2026-06-03Z'")
    with evening.connect() as connection:
        delivered = [effect for effect in effects_on_reservation(connection, "buyer") if effect.delivered_at]
    assert [(effect.what, effect.delivered_at) for effect in delivered] == [
        ("ReminderDue", instant("2026-06-03T00:00"))
    ]


@pytest.mark.parametrize("find", [effects_on_reservation, effects_on_event, effects_on_organization])
def test_a_reference_that_nobody_has_is_refused(engine: Engine, find: object) -> None:
    with pytest.raises(TicketflowError, match="'typo'"), engine.connect() as connection:
        find(connection, "typo")  # type: ignore[operator]


def test_a_large_outbox_is_not_scanned(evening: Engine) -> None:
    execute(
        evening,
        """
        INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload, dedupe_key, occurred_at, state,
            ended_at, available_at)
        SELECT 'reservation', 'r' || n, 'Any', '{}', 'Any:' || n, now(), 'DELIVERED', now(), NULL
        FROM generate_series(1, 20000) AS n
        """,
    )
    execute(evening, "ANALYZE")
    seen: list[str] = []
    with evening.connect() as connection:

        @event.listens_for(connection, "before_cursor_execute")
        def remember(_connection: object, _cursor: object, statement: str, *_: object) -> None:
            seen.append(statement)

        effects_on_event(connection, "concert")
        query = next(statement for statement in seen if "event_asked" in statement)
        plan = "\n".join(connection.exec_driver_sql("EXPLAIN " + query, {"id": 1, "limit": 10}).scalars())
    assert "outbox_event_told_idx" in plan
    assert "Seq Scan on outbox_event" not in plan
