"""Parking an organization holds what is requested for it and was never sent; the end of it lets that go, once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from tests.support.books import FIRST
from tests.support.payable import MARCH, close_owing, close_with, messages_of, owing, request, rows
from tests.support.payments import configuration, delivery, owe, pay, states
from tests.support.provider import Provider
from tests.support.rows import add_organization
from tests.support.sql_statements import deliver, execute, take
from ticketflow_orch.months import Month
from ticketflow_orch.outbox.delivery import Message
from ticketflow_orch.outbox.relay.fetch import Claimed, give_back
from ticketflow_orch.payouts import actions
from ticketflow_orch.payouts.actions import Selection
from ticketflow_orch.payouts.parking import park, unpark
from ticketflow_orch.payouts.request import payouts_due_months

PATIENCE = 60


def books(engine: Engine) -> list[tuple[Any, ...]]:
    """Each payout's state, why, and its event's state."""
    return rows(
        engine,
        """
        SELECT payout.state, reason, event.state
        FROM payout LEFT JOIN outbox_event AS event ON dedupe_key = 'PayoutRequested:' || public_id ORDER BY payout.id
        """,
    )


@pytest.fixture
def opera(engine: Engine) -> str:
    """The reference of a payout that is requested for the opera, beside another organization's."""
    organization, other = add_organization(engine, external_ref="opera"), add_organization(engine)
    close_owing(engine, {organization: 88_000, other: 500})
    request(engine)
    [(reference,)] = rows(engine, f"SELECT CAST(public_id AS text) FROM payout WHERE organization_id = {organization}")
    return str(reference)


@pytest.mark.every_server
def test_what_is_requested_and_was_never_sent_is_held_until_the_parking_ends(engine: Engine, opera: str) -> None:
    parked = park(engine, "opera", "disputed", "ana", FIRST)
    assert (parked.held, parked.on_their_way) == (1, ())
    assert books(engine) == [("HELD", "its organization is parked", "HELD"), ("REQUESTED", None, "PENDING")]
    before = rows(engine, "SELECT event_id FROM outbox_event WHERE event_type = 'PayoutRequested' ORDER BY id")
    assert unpark(engine, "opera", "ana").released == 1
    assert books(engine) == [("REQUESTED", None, "PENDING")] * 2
    after = (
        "SELECT event_id FROM outbox_event WHERE event_type = 'PayoutRequested' AND available_at <= now() ORDER BY id"
    )
    assert rows(engine, after) == before


@pytest.mark.parametrize("how", ["being sent", "may have arrived", "handed over", "in doubt"])
def test_what_was_sent_or_may_have_been_is_named_and_goes_on(engine: Engine, opera: str, how: str) -> None:
    if how == "handed over":
        deliver(engine, "now()", "event_type = 'PayoutRequested'")
    else:
        take(engine, "event_type = 'PayoutRequested'")
    if how == "may have arrived":
        execute(
            engine,
            """
            UPDATE outbox_event SET state = 'PENDING', lease_until = NULL, owner = NULL, doubtful_since = now()
            WHERE state = 'INFLIGHT'
            """,
        )
    if how == "in doubt":
        execute(engine, "UPDATE payout SET state = 'IN_DOUBT'")
    before = books(engine)
    parked = park(engine, "opera", "disputed", "ana", FIRST)
    assert (parked.held, parked.on_their_way) == (0, (opera,))
    assert books(engine) == before
    assert unpark(engine, "opera", "ana").released == 0
    assert books(engine) == before


def test_what_was_requested_of_a_parked_organization_goes_when_the_parking_ends(engine: Engine) -> None:
    owing(engine, external_ref="opera")
    assert park(engine, "opera", "disputed", "ana", FIRST).held == 0
    request(engine)
    assert books(engine) == [("HELD", "its organization is parked", None)]
    assert rows(engine, "SELECT paid_at FROM settlement_period") == [(None,)]
    assert unpark(engine, "opera", "ana").released == 1
    assert books(engine) == [("REQUESTED", None, "PENDING")]
    assert rows(engine, "SELECT paid_at IS NOT NULL FROM settlement_period") == [(True,)]


def test_what_is_held_for_another_reason_too_stays_held(engine: Engine) -> None:
    owing(engine, external_ref="opera")
    park(engine, "opera", "disputed", "ana", FIRST)
    request(engine, review_first=True)
    assert unpark(engine, "opera", "ana").released == 0
    [(state, reason, _)] = books(engine)
    assert state == "HELD"
    assert reason.startswith("review: ")
    assert not reason.endswith("parked")
    assert actions.release(engine, Selection(MARCH), "eva") == 1


def test_what_a_person_holds_is_not_let_go_by_the_end_of_a_parking(engine: Engine, opera: str) -> None:
    with engine.begin() as connection:
        actions.hold(connection, opera, "asked by the bank", "ana")
    assert park(engine, "opera", "disputed", "ana", FIRST).held == 0
    assert unpark(engine, "opera", "ana").released == 0
    assert books(engine)[0] == ("HELD", "asked by the bank", "HELD")


def test_what_a_person_had_released_goes_on_after_a_parking(engine: Engine) -> None:
    owing(engine, external_ref="opera")
    request(engine, review_first=True)
    actions.release(engine, Selection(MARCH), "eva")
    assert park(engine, "opera", "disputed", "ana", FIRST).held == 1
    assert unpark(engine, "opera", "ana").released == 1
    [(state, reason, event_state)] = books(engine)
    assert (state, event_state) == ("REQUESTED", "PENDING")
    assert reason.startswith("review: ")


def test_an_organization_that_a_settlement_has_parked_too_is_not_paid_yet(engine: Engine, opera: str) -> None:
    park(engine, "opera", "disputed", "ana", FIRST)
    execute(
        engine,
        """
        INSERT INTO parked_organization (organization_id, month, error)
        SELECT id, '2026-04-01', 'bigint out of range' FROM organization WHERE external_ref = 'opera'
        """,
    )
    assert unpark(engine, "opera", "ana").released == 0
    assert books(engine)[0] == ("HELD", "its organization is parked", "HELD")


@pytest.mark.parametrize("by_hand_too", [False, True])
def test_what_only_a_settlement_s_parking_held_goes_with_the_next_request_when_that_is_resolved(
    engine: Engine, by_hand_too: bool
) -> None:
    organization = owing(engine, external_ref="opera")
    if by_hand_too:
        request(engine)
        park(engine, "opera", "disputed", "ana", FIRST)
    execute(
        engine,
        f"INSERT INTO parked_organization (organization_id, month, error) VALUES ({organization}, '2026-04-01', 'bad')",
    )
    if by_hand_too:
        unpark(engine, "opera", "ana")
    assert request(engine).requested == 0
    assert [state for state, _, _ in books(engine)] == ["HELD"]
    assert due(engine) == ()
    execute(engine, "UPDATE parked_organization SET resolved_at = now() WHERE error IS NOT NULL")
    assert due(engine) == (MARCH,)
    assert request(engine).requested == 1
    assert books(engine) == [("REQUESTED", None, "PENDING")]
    assert due(engine) == ()


def due(engine: Engine) -> tuple[Month, ...]:
    with engine.connect() as connection:
        return payouts_due_months(connection)


# --- Killed, and two at once


def stopped_before(engine: Engine, words: str, stop: Callable[[], None]) -> Callable[[], None]:
    """Let `stop` happen before each statement with these words; what it returns ends that."""

    def look(*arguments: Any) -> None:
        if words in arguments[2]:
            stop()

    event.listen(engine, "before_cursor_execute", look)
    return lambda: event.remove(engine, "before_cursor_execute", look)


@pytest.mark.parametrize("words", ["FOR UPDATE OF event", "UPDATE payout SET state = 'HELD'", "state IN ('REQUESTED'"])
def test_a_parking_that_is_killed_half_way_has_done_nothing(engine: Engine, opera: str, words: str) -> None:
    def die() -> None:
        raise KeyboardInterrupt

    end = stopped_before(engine, words, die)
    with pytest.raises(KeyboardInterrupt):
        park(engine, "opera", "disputed", "ana", FIRST)
    end()
    assert rows(engine, "SELECT count(*) FROM parked_organization") == [(0,)]
    assert books(engine) == [("REQUESTED", None, "PENDING")] * 2
    assert park(engine, "opera", "disputed", "ana", FIRST).held == 1


@pytest.mark.parametrize("words", ["UPDATE payout SET reason", "INSERT INTO outbox_event"])
def test_the_end_of_a_parking_that_is_killed_half_way_has_done_nothing(engine: Engine, opera: str, words: str) -> None:
    park(engine, "opera", "disputed", "ana", FIRST)

    def die() -> None:
        raise KeyboardInterrupt

    end = stopped_before(engine, words, die)
    with pytest.raises(KeyboardInterrupt):
        unpark(engine, "opera", "ana")
    end()
    assert books(engine)[0] == ("HELD", "its organization is parked", "HELD")
    assert unpark(engine, "opera", "ana").released == 1


def together(engine: Engine, words: str, first: Callable[[], Any], second: Callable[[], Any]) -> tuple[Any, Any]:
    """Run both; `first` waits before its statement with these words until `second` has begun to wait for it."""
    reached, go = threading.Event(), threading.Event()

    def stop() -> None:
        reached.set()
        assert go.wait(PATIENCE)

    end = stopped_before(engine, words, stop)
    with ThreadPoolExecutor(2) as threads:
        one = threads.submit(first)
        assert reached.wait(PATIENCE)
        other = threads.submit(second)
        waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        while rows(engine, waits) == [(0,)] and not other.done():
            threading.Event().wait(0.01)
        assert not other.done()
        go.set()
        results = one.result(PATIENCE), other.result(PATIENCE)
    end()
    return results


@pytest.mark.every_server
def test_a_payout_that_is_being_requested_is_held_by_a_parking_that_comes_meanwhile(engine: Engine) -> None:
    owing(engine, external_ref="opera")
    _, parked = together(
        engine, "INSERT INTO payout", lambda: request(engine), lambda: park(engine, "opera", "disputed", "ana", FIRST)
    )
    assert parked.held == 1
    assert books(engine) == [("HELD", "its organization is parked", "HELD")]


def test_a_request_waits_for_a_parking_and_sees_it(engine: Engine) -> None:
    owing(engine, external_ref="opera")
    together(
        engine,
        "FOR UPDATE OF event",
        lambda: park(engine, "opera", "disputed", "ana", FIRST),
        lambda: request(engine),
    )
    assert books(engine) == [("HELD", "its organization is parked", None)]


def test_a_release_of_the_month_and_a_parking_wait_for_each_other(engine: Engine) -> None:
    owing(engine, external_ref="opera")
    request(engine, review_first=True)
    _, parked = together(
        engine,
        "INSERT INTO outbox_event",
        lambda: actions.release(engine, Selection(MARCH), "eva"),
        lambda: park(engine, "opera", "disputed", "ana", FIRST),
    )
    assert parked.held == 1
    assert [state for state, _, _ in books(engine)] == ["HELD"]


def test_parked_and_unparked_while_a_relay_sends_each_is_paid_exactly_once(
    engine: Engine, start_provider: Callable[..., Provider], tmp_path: Path
) -> None:
    provider = start_provider()
    provider.behave(slow=0.2, pause=0.05)
    owed = owe(engine, 24)
    to = configuration(provider, tmp_path)

    def disturb(organizations: list[str]) -> int:
        count = 0
        for name in organizations:
            parked = park(engine, name, "disputed", "ana", FIRST)
            assert parked.held + len(parked.on_their_way) <= 1
            # The relay may have held what it had not sent.
            released = unpark(engine, name, "ana").released
            assert parked.held <= released <= 1
            count += released
        return count

    with ThreadPoolExecutor(3) as threads:
        names = [name for name, _, _ in reversed(owed)]
        disturbing = [threads.submit(disturb, some) for some in (names[::2], names[1::2])]
        relay = threads.submit(pay, engine, delivery(to))
        held = sum(one.result(PATIENCE) for one in disturbing)
        relay.result(PATIENCE * 2)
    pay(engine, delivery(to))
    assert held > 0
    assert provider.paid == sorted(owed)
    assert states(engine) == {"CONFIRMED": 24}


def test_a_parked_organization_is_sent_nothing(
    engine: Engine, start_provider: Callable[..., Provider], tmp_path: Path
) -> None:
    provider = start_provider()
    owed = owe(engine, 6)
    for name, _, _ in owed[:3]:
        park(engine, name, "disputed", "ana", FIRST)
    to = configuration(provider, tmp_path)
    pay(engine, delivery(to))
    assert provider.paid == sorted(owed[3:])
    for name, _, _ in owed[:3]:
        unpark(engine, name, "ana")
    pay(engine, delivery(to))
    assert provider.paid == sorted(owed)


def amounts(provider: Provider) -> list[int]:
    return sorted(amount for _, _, amount in provider.paid)


def test_what_was_refused_for_certain_is_held_like_what_was_never_tried(
    engine: Engine, opera: str, start_provider: Callable[..., Provider], tmp_path: Path
) -> None:
    provider = start_provider()
    provider.kill()
    to = configuration(provider, tmp_path)
    pay(engine, delivery(to), seconds=0.3)
    assert park(engine, "opera", "disputed", "ana", FIRST).held == 1
    provider.start()
    pay(engine, delivery(to))
    assert amounts(provider) == [500]
    assert unpark(engine, "opera", "ana").released == 1
    pay(engine, delivery(to))
    assert amounts(provider) == [500, 88_000]


@pytest.mark.every_server
def test_what_a_relay_had_in_its_hands_and_gave_back_unsent_is_held_until_the_parking_ends(
    engine: Engine, opera: str, start_provider: Callable[..., Provider], tmp_path: Path
) -> None:
    provider = start_provider()
    to = configuration(provider, tmp_path)
    take(engine, "event_type = 'PayoutRequested'")
    parked = park(engine, "opera", "disputed", "ana", FIRST)
    assert (parked.held, parked.on_their_way) == (0, (opera,))
    with engine.begin() as connection:
        give_back(connection, [Claimed(one, message, 1, None, "provider", 0) for one, message in claimed(engine)])
    pay(engine, delivery(to))
    assert amounts(provider) == [500]
    assert books(engine)[0] == ("HELD", "its organization is parked", "HELD")
    assert unpark(engine, "opera", "ana").released == 1
    pay(engine, delivery(to))
    assert amounts(provider) == [500, 88_000]


def claimed(engine: Engine) -> list[tuple[int, Message]]:
    """The events that ask for payouts, as the relay has claimed them, by their numbers."""
    numbers = rows(engine, "SELECT id FROM outbox_event WHERE event_type = 'PayoutRequested' ORDER BY id")
    return [(number, message) for (number,), message in zip(numbers, messages_of(engine), strict=True)]


def test_what_a_person_releases_in_spite_of_the_parking_is_sent(
    engine: Engine, opera: str, start_provider: Callable[..., Provider], tmp_path: Path
) -> None:
    provider = start_provider()
    park(engine, "opera", "disputed", "ana", FIRST)
    assert actions.release(engine, Selection(reference=opera), "eva") == 1
    pay(engine, delivery(configuration(provider, tmp_path)))
    assert amounts(provider) == [500, 88_000]


def test_the_payouts_of_all_currencies_are_held(engine: Engine) -> None:
    organization = add_organization(engine, external_ref="opera")
    close_with(engine, [(organization, "EUR", 100), (organization, "JPY", 7)])
    request(engine)
    assert park(engine, "opera", "disputed", "ana", FIRST).held == 2
    assert unpark(engine, "opera", "ana").released == 2
