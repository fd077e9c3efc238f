"""What people decide about payouts: who may be stopped, sent, settled and returned, and what is refused."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Engine

from tests.support.payable import MARCH, NOW, close_with, owing, request, requested_payout, rows
from tests.support.provider_by_hand import CONFIRMED, in_doubt, recorded, said
from tests.support.rows import add_organization
from tests.support.sql_statements import deliver, execute, refusal, take
from ticketflow_orch.db.engine import transaction
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.months import Month
from ticketflow_orch.outbox import admin
from ticketflow_orch.outbox.admin import Choice
from ticketflow_orch.payouts import actions
from ticketflow_orch.payouts.actions import Selection
from ticketflow_orch.payouts.parking import park
from ticketflow_orch.payouts.pause import pause, resume

NOBODY = "00000000-0000-4000-8000-000000000000"

confirm = partial(actions.confirm, now=NOW)


def decide(engine: Engine, decision: Any, *arguments: Any) -> None:
    with transaction(engine) as connection:
        decision(connection, *arguments)


def refused(engine: Engine, decision: Any, *arguments: Any) -> str:
    with pytest.raises(TicketflowError) as error, transaction(engine) as connection:
        decision(connection, *arguments)
    return str(error.value)


def books(engine: Engine) -> list[tuple[Any, ...]]:
    """Each payout's state and who decided, and its event's state."""
    return rows(
        engine,
        """
        SELECT payout.state, decided_by, outbox_event.state
        FROM payout LEFT JOIN outbox_event ON dedupe_key = 'PayoutRequested:' || public_id ORDER BY payout.id
        """,
    )


def test_a_payout_that_was_never_tried_is_held_and_released_under_its_own_event(engine: Engine) -> None:
    reference = requested_payout(engine)
    decide(engine, actions.hold, reference, "asked by the bank", "ana")
    assert books(engine) == [("HELD", "ana", "HELD")]
    assert rows(engine, "SELECT reason FROM payout") == [("asked by the bank",)]
    assert actions.release(engine, Selection(reference=reference), "eva") == 1
    assert books(engine) == [("REQUESTED", "eva", "PENDING")]


def test_a_held_payout_is_not_sent_whoever_lets_its_event_go(engine: Engine) -> None:
    reference = requested_payout(engine)
    decide(engine, actions.hold, reference, "asked by the bank", "ana")
    [(event_id,)] = rows(engine, "SELECT event_id FROM outbox_event WHERE event_type = 'PayoutRequested'")
    assert refused(engine, admin.release, event_id) == (
        f"Event {event_id} is about payout {reference}; decide about that with `ticketflow payouts`."
    )
    wake = "UPDATE outbox_event SET state = 'PENDING', available_at = now() WHERE state = 'HELD'"
    assert f"payout {reference} is held" in refusal(engine, wake)
    assert books(engine) == [("HELD", "ana", "HELD")]


def test_a_payout_in_doubt_is_not_redriven_with_other_dead_events(engine: Engine) -> None:
    reference = in_doubt(engine, "DEAD")
    [(event_id,)] = rows(engine, "SELECT event_id FROM outbox_event WHERE event_type = 'PayoutRequested'")
    with transaction(engine) as connection:
        assert admin.redrive(connection, Choice(event_types=["PayoutRequested"])) == 0
    assert refused(engine, admin.redrive, Choice([event_id])) == (
        f"Event {event_id} is about payout {reference}; decide about that with `ticketflow payouts`."
    )
    assert books(engine) == [("IN_DOUBT", None, "DEAD")]


def test_a_payout_that_may_be_on_its_way_cannot_be_held(engine: Engine) -> None:
    reference = requested_payout(engine)
    take(engine)
    against = refused(engine, actions.hold, reference, "too late", "ana")
    assert re.fullmatch(
        f"Payout {reference} is REQUESTED and was tried at 2[-0-9]+ [0-9]+:[0-9]+ UTC; only one that is REQUESTED and "
        "was never tried can be held.",
        against,
    )
    execute(engine, "UPDATE outbox_event SET state = 'PENDING', lease_until = NULL, owner = NULL")
    assert refused(engine, actions.hold, reference, "too late", "ana") == against
    assert books(engine) == [("REQUESTED", None, "PENDING")]


@pytest.mark.every_server
def test_what_was_held_for_review_is_released_by_month_and_currency(engine: Engine) -> None:
    first, second = add_organization(engine), add_organization(engine)
    close_with(engine, [(first, "EUR", 100), (first, "USD", 7), (second, "EUR", 200)])
    assert request(engine, review_first=True).held == 3
    assert rows(engine, "SELECT count(*) FROM outbox_event WHERE event_type = 'PayoutRequested'") == [(0,)]
    with pytest.raises(TicketflowError, match="No payout of 2026-02 is held"):
        actions.release(engine, Selection(Month(2026, 2)), "eva")
    assert actions.release(engine, Selection(MARCH, "EUR"), "eva", chunk_size=1) == 2
    assert rows(engine, "SELECT currency, state FROM payout ORDER BY 1, 2") == [
        ("EUR", "REQUESTED"),
        ("EUR", "REQUESTED"),
        ("USD", "HELD"),
    ]
    assert rows(
        engine,
        """
        SELECT payload ->> 'currency', payload -> 'amount' FROM outbox_event
        WHERE event_type = 'PayoutRequested' ORDER BY id
        """,
    ) == [("EUR", 100), ("EUR", 200)]
    assert rows(engine, "SELECT paid_at FROM settlement_period") == [(None,)]
    actions.release(engine, Selection(MARCH), "eva")
    assert rows(engine, "SELECT paid_at IS NOT NULL FROM settlement_period") == [(True,)]


def test_a_month_is_released_without_what_a_person_holds_and_who_is_parked(engine: Engine) -> None:
    reviewed, inquiry = add_organization(engine), add_organization(engine)
    parked = add_organization(engine, external_ref="opera")
    close_with(engine, [(reviewed, "EUR", 100), (parked, "EUR", 200), (inquiry, "EUR", 300)])
    park(engine, "opera", "a dispute", by="ann", first_month=MARCH)
    assert request(engine, review_first=True).held == 3
    [(reference,)] = rows(engine, f"SELECT public_id FROM payout WHERE organization_id = {inquiry}")
    execute(engine, f"UPDATE payout SET decided_by = 'ana', reason = 'inquiry' WHERE public_id = '{reference}'")

    assert actions.release(engine, Selection(MARCH), "eva") == 1
    assert rows(engine, "SELECT organization_id, state FROM payout ORDER BY 1") == [
        (reviewed, "REQUESTED"),
        (inquiry, "HELD"),
        (parked, "HELD"),
    ]
    with pytest.raises(TicketflowError, match=r"is held for review\. Still held by somebody, or with a .*: 2; rel"):
        actions.release(engine, Selection(MARCH), "eva")
    assert actions.release(engine, Selection(reference=str(reference)), "eva") == 1
    [(reason,)] = rows(engine, f"SELECT reason FROM payout WHERE organization_id = {parked}")
    assert re.fullmatch("review: .*; its organization is parked", reason)


def test_a_held_payout_can_be_given_back_instead(engine: Engine) -> None:
    reference = requested_payout(engine)
    decide(engine, actions.hold, reference, "the organization left", "ana")
    decide(engine, actions.reject, reference, "to be paid by hand", "eva")
    assert books(engine) == [("REJECTED", "eva", "SUPPRESSED")]
    owing(engine, month=Month(2026, 2))
    request(engine, Month(2026, 2), review_first=True)
    [(held,)] = rows(engine, "SELECT CAST(public_id AS text) FROM payout WHERE state = 'HELD'")
    decide(engine, actions.reject, held, "never sent", "eva")
    assert rows(engine, "SELECT state, paid_at IS NOT NULL FROM settlement_period ORDER BY month LIMIT 1") == [
        ("CLOSED", True)
    ]


@pytest.mark.parametrize("event_state", ["IN_DOUBT", "DEAD", "DELIVERED"])
def test_a_doubt_is_settled_by_who_asked_the_provider(engine: Engine, event_state: str) -> None:
    reference = in_doubt(engine, event_state)
    decide(engine, confirm, reference, "eva", "po_9")
    assert books(engine) == [("CONFIRMED", "eva", "DELIVERED")]
    assert rows(engine, "SELECT provider_ref, answered_at IS NOT NULL FROM payout") == [("po_9", True)]


@pytest.mark.parametrize(("event_state", "ends"), [("IN_DOUBT", "SUPPRESSED"), ("DELIVERED", "DELIVERED")])
def test_a_doubt_settled_as_rejected_can_never_be_sent_again(engine: Engine, event_state: str, ends: str) -> None:
    reference = in_doubt(engine, event_state)
    decide(engine, actions.reject, reference, "the provider has no trace", "eva")
    assert books(engine) == [("REJECTED", "eva", ends)]
    assert rows(
        engine, "SELECT count(*) FROM outbox_event WHERE available_at IS NOT NULL AND aggregate_type = 'payout'"
    ) == [(0,)]


@pytest.mark.parametrize("event_state", ["IN_DOUBT", "DEAD"])
@pytest.mark.parametrize("looked_up", [True, False])
def test_a_payout_in_doubt_is_asked_for_again_with_its_doubt_where_that_is_looked_up(
    engine: Engine, event_state: str, looked_up: bool
) -> None:
    reference = in_doubt(engine, event_state)
    assert actions.ask_again(engine, Selection(reference=reference), "eva", looked_up=looked_up) == 1
    assert books(engine) == [("REQUESTED", "eva", "PENDING")]
    assert rows(
        engine,
        """
        SELECT attempts - attempts_forgiven, doubtful_since IS NOT NULL FROM outbox_event
        WHERE event_type = 'PayoutRequested'
        """,
    ) == [(0, looked_up)]


@pytest.mark.parametrize("decision", [confirm, actions.reject])
def test_nobody_decides_about_a_payout_that_is_on_its_way(engine: Engine, decision: Any) -> None:
    reference = in_doubt(engine)
    execute(
        engine,
        "UPDATE outbox_event SET state = 'PENDING', available_at = now() WHERE event_type = 'PayoutRequested'",
    )
    said_against = refused(engine, decision, reference, *["why"] * (decision is actions.reject), "eva")
    assert said_against.startswith(f"Payout {reference} is IN_DOUBT, and is still on its way; ")
    assert books(engine) == [("IN_DOUBT", None, "PENDING")]


def test_what_the_provider_said_it_has_is_not_asked_for_again(engine: Engine) -> None:
    reference = in_doubt(engine, "DELIVERED")
    with pytest.raises(TicketflowError, match=f"No payout {reference} can be asked for again"):
        actions.ask_again(engine, Selection(reference=reference), "eva", looked_up=True)


def test_what_was_handed_over_is_confirmed_by_hand(engine: Engine) -> None:
    reference = requested_payout(engine)
    assert "is REQUESTED" in refused(engine, confirm, reference, "eva")
    deliver(engine, "now()")
    decide(engine, confirm, reference, "eva")
    assert books(engine) == [("CONFIRMED", "eva", "DELIVERED")]


@pytest.mark.every_server
def test_only_a_confirmed_payout_comes_back(engine: Engine) -> None:
    reference = requested_payout(engine)
    assert refused(engine, actions.return_payout, reference, "IBAN closed", "eva") == (
        f"Payout {reference} is REQUESTED; only a confirmed one can come back."
    )
    deliver(engine, "now()")
    recorded(engine, "DELIVERED", said(CONFIRMED))
    decide(engine, actions.return_payout, reference, "IBAN closed", "eva")
    assert rows(engine, "SELECT state, reason, decided_by, returned_month FROM payout") == [
        ("RETURNED", "IBAN closed", "eva", None)
    ]
    assert "is RETURNED" in refused(engine, actions.return_payout, reference, "twice", "eva")


def test_payouts_are_paused_and_resumed_with_who_and_why(engine: Engine) -> None:
    decide(engine, pause, "the bank is closed", "ana")
    assert rows(engine, "SELECT kind, name, reason, stopped_by FROM delivery_stop") == [
        ("EVENT_TYPE", "PayoutRequested", "the bank is closed", "ana")
    ]
    assert refused(engine, pause, "again", "eva") == (
        "Payouts are paused already, by ana: the bank is closed; resume them first."
    )
    decide(engine, resume)
    assert refused(engine, resume) == "Payouts are not paused; there is nothing to resume."


@pytest.mark.parametrize(
    ("decision", "arguments"),
    [
        (actions.hold, ["why", "eva"]),
        (confirm, ["eva"]),
        (actions.reject, ["why", "eva"]),
        (actions.return_payout, ["why", "eva"]),
    ],
)
def test_a_reference_that_nobody_has_is_refused(engine: Engine, decision: Any, arguments: list[str]) -> None:
    assert re.match(f"There is no payout {NOBODY}; ", refused(engine, decision, NOBODY, *arguments))
    assert "'typo' is no reference of a payout" in refused(engine, decision, "typo", *arguments)
