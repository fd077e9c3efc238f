"""What nobody owes is never sent: an event that asks for money has its payout behind it, or waits for a person."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, text

from tests.outbox.relay.world import Receiver, alerts, route
from tests.outbox.relay.world import run as relay
from tests.support.obstacles import said
from tests.support.payable import owing, request, requested_payout, rows
from tests.support.sql_statements import execute, refusal
from ticketflow_orch.auditing import INVARIANTS, Asked, examine, snapshot
from ticketflow_orch.db.engine import transaction
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.event_handlers import KINDS
from ticketflow_orch.outbox import admin
from ticketflow_orch.outbox.delivery.configuration import Delivery
from ticketflow_orch.outbox.relay import Drained
from ticketflow_orch.payouts.actions import Selection, reject, release
from ticketflow_orch.settings import settings

FORGED = """
    INSERT INTO outbox_event (event_id, aggregate_type, aggregate_id, event_type, payload, dedupe_key, occurred_at)
    SELECT derived_id((SELECT id FROM installation), 'outbox_event', {key}), {aggregate_type}, {reference},
        'PayoutRequested', jsonb_build_object('reference', {reference},
        'organization', {organization}, 'month', {month}, 'currency', {currency}, 'amount', {amount}), {key}, now()
    FROM (SELECT 1) AS one LEFT JOIN payout ON true LEFT JOIN organization ON organization.id = organization_id
"""
TRUE = {
    "aggregate_type": "'payout'", "reference": "CAST(public_id AS text)", "organization": "external_ref",
    "month": "to_char(month, 'YYYY-MM')", "currency": "payout.currency", "amount": "amount",
    "key": "'PayoutRequested:' || public_id",
}  # fmt: skip
WRONG = {
    "another amount": {"amount": "99999999"},
    "an amount in words": {"amount": "CAST(amount AS text)"},
    "another organization": {"organization": "'somebody'"},
    "another currency": {"currency": "'JPY'"},
    "another month": {"month": "'2026-04'"},
    "a payout that is not there": {"reference": "'01890000-0000-7000-8000-000000000000'"},
    "what is no reference": {"reference": "'nobody'"},
    "nothing at all": {"amount": "NULL"},
    "a second key": {"key": "'mine'"},
    "another aggregate": {"aggregate_type": "'thing'"},
}


def forged(**other: str) -> str:
    return FORGED.format(**TRUE | other)


def forge(engine: Engine, **other: str) -> None:
    """Let an event be in the outbox that the database would have refused."""
    with engine.begin() as connection:
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        connection.execute(text(forged(**other)))


def deliver(engine: Engine) -> tuple[Drained, list[str]]:
    """Drain once; what came of it, and for which payouts somebody was asked."""
    bank = Receiver()
    routes = {"PayoutRequested": route("bank")}
    drained = relay(engine, Delivery(routes, route("alerts"), {"bank": lambda: bank, "alerts": Receiver}), KINDS)
    return drained, [message.aggregate_id for message in bank.sent]


def events(engine: Engine) -> list[tuple[str, str | None]]:
    return [
        (state, error)
        for state, error in rows(
            engine, "SELECT state, last_error FROM outbox_event WHERE event_type = 'PayoutRequested' ORDER BY id"
        )
    ]


@pytest.mark.every_server
@pytest.mark.parametrize("other", WRONG.values(), ids=WRONG)
def test_an_event_that_asks_for_what_no_payout_owes_is_refused(engine: Engine, other: dict[str, str]) -> None:
    requested_payout(engine)
    with transaction(engine) as connection:
        connection.execute(text("DELETE FROM outbox_event"))
    assert "asks for what its event says" in refusal(engine, forged(**other))
    assert execute(engine, forged()) == 1


def test_an_event_of_a_payout_that_is_held_is_refused(engine: Engine) -> None:
    owing(engine)
    assert request(engine, review_first=True).held == 1
    assert "asks for what its event says" in refusal(engine, forged())


@pytest.mark.parametrize("other", WRONG.values(), ids=WRONG)
def test_an_event_that_came_past_the_database_is_held_and_told_and_shown(engine: Engine, other: dict[str, str]) -> None:
    requested_payout(engine)
    with transaction(engine) as connection:
        connection.execute(text("DELETE FROM outbox_event WHERE event_type = 'PayoutRequested'"))
    forge(engine, **other)
    drained, asked = deliver(engine)
    assert (asked, drained.held, drained.delivered) == ([], 1, 1)
    [(state, error)] = events(engine)
    assert state == "HELD"
    assert error is not None
    assert error.startswith("It asks for a payout that is not owed so: ")
    assert alerts(engine) == ["OutboxEventHeld"]
    [line] = [line for line in said(engine) if "and asks for" in line]
    assert line.startswith("payouts: event ")
    assert "find out who wrote it (`ticketflow outbox show " in line


def test_a_forged_event_beside_the_true_one_is_dropped_by_a_person_and_the_payout_is_released(engine: Engine) -> None:
    reference = requested_payout(engine)
    forge(engine, key="'mine'", amount="99999999")
    drained, asked = deliver(engine)
    assert (asked, drained.held) == ([reference], 1)
    [(key,)] = rows(engine, "SELECT event_id FROM outbox_event WHERE dedupe_key = 'mine'")
    with snapshot(engine) as connection:
        found = {
            one.invariant.name: one.findings
            for one in examine(connection, Asked.configured(settings()), INVARIANTS)
            if one.is_broken
        }
    assert "asks for a payout that has an event of its own" in str(found["outbox_consistent"])
    with transaction(engine) as connection:
        admin.resolve(connection, KINDS, key, "dropped", "ana")
    assert [state for state, _ in events(engine)] == ["DELIVERED", "SUPPRESSED"]
    assert not any("and asks for" in line for line in said(engine))


def test_an_event_whose_payout_is_there_is_decided_about_with_the_payout(engine: Engine) -> None:
    reference = requested_payout(engine)
    with transaction(engine) as connection:
        connection.execute(text("DELETE FROM outbox_event WHERE event_type = 'PayoutRequested'"))
    forge(engine, amount="99999999")
    deliver(engine)
    assert rows(engine, "SELECT state, first_attempt_at FROM payout") == [("HELD", None)]
    [(key,)] = rows(engine, "SELECT event_id FROM outbox_event WHERE event_type = 'PayoutRequested'")
    with (
        transaction(engine) as connection,
        pytest.raises(TicketflowError, match="decide about that with `ticketflow pay"),
    ):
        admin.resolve(connection, KINDS, key, "dropped", "ana")
    release(engine, Selection(reference=reference), "ana")
    assert deliver(engine)[1] == [], "released, and held again"
    [line] = [line for line in said(engine) if "and asks for" in line]
    assert f"then `ticketflow payouts resolve {reference} --as rejected --reason TEXT`" in line
    with transaction(engine) as connection:
        reject(connection, reference, "forged", "ana")
    assert [state for state, _ in events(engine)] == ["SUPPRESSED"]
    assert rows(engine, "SELECT state FROM payout") == [("REJECTED",)]


def test_bytes_that_somebody_has_written_for_a_payout_are_not_sent(engine: Engine) -> None:
    requested_payout(engine)
    execute(engine, "UPDATE outbox_event SET body = 'amount 99999999' WHERE event_type = 'PayoutRequested'")
    assert deliver(engine)[1] == []
    assert events(engine)[0][0] == "HELD"


def test_what_may_have_arrived_is_in_doubt_instead_of_held(engine: Engine) -> None:
    requested_payout(engine)
    execute(
        engine,
        "UPDATE outbox_event SET doubtful_since = now(), destination = 'bank' WHERE event_type = 'PayoutRequested'",
    )
    execute(engine, "UPDATE organization SET external_ref = 'renamed'")
    assert deliver(engine)[1] == []
    assert events(engine)[0][0] == "IN_DOUBT"
    assert rows(engine, "SELECT state FROM payout") == [("IN_DOUBT",)]
