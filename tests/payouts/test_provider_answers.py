"""What a provider's answers do to payouts: money moves once, on a definite word, and is never guessed about."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, event

from tests.support.payable import close_owing, messages_of, request, requested_payout, rows
from tests.support.provider_by_hand import CONFIRMED, REJECTED, recorded, said
from tests.support.rows import add_organization
from tests.support.sql_statements import execute, take
from ticketflow_orch.db.engine import transaction
from ticketflow_orch.outbox.delivery import Outcome, Verdict
from ticketflow_orch.outbox.delivery.handlers import Recorded
from ticketflow_orch.outbox.events import EventState
from ticketflow_orch.payouts.provider_answers import record_payouts


def payout(engine: Engine, columns: str = "state, reason, provider_ref") -> tuple[Any, ...]:
    return rows(engine, f"SELECT {columns} FROM payout")[0]


def alerts(engine: Engine) -> list[str]:
    return [kind for (kind,) in rows(engine, "SELECT kind FROM alert ORDER BY alerted_at")]


def test_a_confirmation_is_kept_with_the_providers_own_reference(engine: Engine) -> None:
    requested_payout(engine)
    recorded(engine, "DELIVERED", said(CONFIRMED))
    assert payout(engine) == ("CONFIRMED", None, "po_1")
    assert payout(engine, "answered_at IS NOT NULL") == (True,)


def test_a_rejection_is_kept_with_its_reason_and_waits_to_come_back(engine: Engine) -> None:
    requested_payout(engine)
    recorded(engine, "DELIVERED", said(REJECTED))
    assert payout(engine, "state, reason, returned_month") == ("REJECTED", "account closed", None)


def test_the_first_attempt_is_dated_when_it_begins(engine: Engine) -> None:
    requested_payout(engine)
    take(engine)
    execute(engine, "UPDATE outbox_event SET first_attempt_at = '2026-04-03T07:00Z'")
    recorded(engine, "INFLIGHT")
    execute(engine, "UPDATE outbox_event SET first_attempt_at = '2026-05-01T00:00Z'")
    recorded(engine, "INFLIGHT")
    assert payout(engine, "state, CAST(first_attempt_at AS text)") == ("REQUESTED", "2026-04-03 07:00:00+00")


@pytest.mark.parametrize(
    "answer",
    [
        {"status": "taken"},
        {"status": ["confirmed"]},
        {"state": "confirmed"},
        ["confirmed"],
        "confirmed",
        None,
        {"status": "confirmed", "reference": "somebody else's"},
        {"status": "confirmed", "amount": 88_001},
        {"status": "rejected", "currency": "USD"},
    ],
)
def test_an_answer_that_is_no_definite_word_on_this_payout_leaves_it_in_doubt(engine: Engine, answer: object) -> None:
    requested_payout(engine)
    recorded(engine, "DELIVERED", said(answer, 202))
    state, reason, provider_ref = payout(engine)
    assert (state, provider_ref) == ("IN_DOUBT", None)
    assert reason.startswith("the provider ")
    assert alerts(engine) == ["PayoutInDoubt"]


@pytest.mark.parametrize("state", ["DEAD", "IN_DOUBT", "SUPPRESSED"])
def test_a_delivery_that_ended_without_an_answer_returns_no_money(engine: Engine, state: EventState) -> None:
    requested_payout(engine)
    conflict = Outcome(Verdict.REJECTED, "The receiver answered 422.", 422, '{"status": "rejected"}')
    recorded(engine, state, conflict)
    assert payout(engine) == ("IN_DOUBT", "The receiver answered 422.", None)
    assert alerts(engine) == ["PayoutInDoubt"]


def test_what_was_handed_over_to_a_file_waits_for_somebodys_word(engine: Engine) -> None:
    requested_payout(engine)
    recorded(engine, "DELIVERED", Outcome(Verdict.DELIVERED))
    assert payout(engine) == ("REQUESTED", None, None)
    assert alerts(engine) == []


def test_a_doubt_ends_with_a_definite_answer(engine: Engine) -> None:
    requested_payout(engine)
    recorded(engine, "IN_DOUBT", Outcome(Verdict.UNKNOWN, "No answer."))
    recorded(engine, "DELIVERED", said(CONFIRMED))
    assert payout(engine) == ("CONFIRMED", "No answer.", "po_1")


@pytest.mark.parametrize(("first", "second"), [(CONFIRMED, REJECTED), (REJECTED, CONFIRMED)])
def test_the_first_answer_wins_and_a_contradiction_is_told_once(
    engine: Engine, first: dict[str, str], second: dict[str, str]
) -> None:
    requested_payout(engine)
    recorded(engine, "DELIVERED", said(first))
    before = payout(engine, "state, reason, provider_ref, answered_at")
    for answer in (first, second, second, {"status": "taken"}):
        recorded(engine, "DELIVERED", said(answer))
    recorded(engine, "DEAD", Outcome(Verdict.REJECTED, "The receiver answered 400."))
    assert payout(engine, "state, reason, provider_ref, answered_at") == before
    assert alerts(engine) == ["PayoutContradicted"]


def test_a_payout_that_came_back_was_confirmed_once(engine: Engine) -> None:
    requested_payout(engine)
    recorded(engine, "DELIVERED", said(CONFIRMED))
    execute(engine, "UPDATE payout SET state = 'RETURNED'")
    recorded(engine, "DELIVERED", said(CONFIRMED))
    assert alerts(engine) == []
    recorded(engine, "DELIVERED", said(REJECTED))
    assert (payout(engine, "state"), alerts(engine)) == (("RETURNED",), ["PayoutContradicted"])


def test_whatever_a_provider_writes_fits_into_the_books(engine: Engine) -> None:
    requested_payout(engine)
    recorded(
        engine, "DELIVERED", said({"status": "confirmed", "provider_ref": 17, "reason": "\0\ud800" + "long " * 1000})
    )
    state, reason, provider_ref = payout(engine)
    assert (state, provider_ref, len(reason)) == ("CONFIRMED", "17", 300)


@pytest.mark.parametrize("words", ["[" * 10_000, "{", "\ud800", ""])
def test_what_nobody_can_read_leaves_a_doubt(engine: Engine, words: str) -> None:
    requested_payout(engine)
    recorded(engine, "DELIVERED", Outcome(Verdict.DELIVERED, None, 200, words))
    assert payout(engine, "state") == ("IN_DOUBT",)


@pytest.mark.every_server
def test_a_batch_of_answers_is_one_statement(engine: Engine) -> None:
    close_owing(engine, {add_organization(engine): 100 + n for n in range(3)})
    request(engine)
    ended = [
        Recorded(message, "DELIVERED", said(CONFIRMED | {"provider_ref": f"po_{number}"}))
        for number, message in enumerate(messages_of(engine))
    ]
    seen: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *arguments: seen.append(arguments[2]))
    with transaction(engine) as connection:
        record_payouts(connection, ended)
    assert len(seen) == 1
    assert rows(engine, "SELECT state FROM payout") == [("CONFIRMED",)] * 3
