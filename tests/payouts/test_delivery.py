"""Payouts through the real relay to a provider that fails in every way it can: its books are the judge."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from tests.support.payable import MARCH, rows
from tests.support.payments import configuration, delivery, owe, pay, states, under_way
from tests.support.provider import Provider
from ticketflow_orch.db.engine import transaction
from ticketflow_orch.event_handlers import KINDS
from ticketflow_orch.outbox.admin import show
from ticketflow_orch.payouts import actions
from ticketflow_orch.payouts.actions import Selection
from ticketflow_orch.payouts.pause import pause, resume


@pytest.fixture
def provider(start_provider: Callable[..., Provider]) -> Provider:
    return start_provider()


def test_each_payout_is_asked_for_under_its_own_key_and_confirmed(
    engine: Engine, provider: Provider, tmp_path: Path
) -> None:
    owed = owe(engine)
    drained = pay(engine, delivery(configuration(provider, tmp_path)))
    assert drained.delivered == len(owed)
    assert provider.paid == owed
    assert states(engine) == {"CONFIRMED": len(owed)}
    asked = rows(
        engine,
        """
        SELECT CAST(event_id AS text), aggregate_id, provider_ref FROM outbox_event
        JOIN payout ON aggregate_id = CAST(public_id AS text)
        WHERE payout.first_attempt_at = outbox_event.first_attempt_at AND answered_at >= payout.first_attempt_at
        """,
    )
    assert set(asked) == {(entry.key, entry.reference, entry.provider_ref) for entry in provider.entries}
    assert len(asked) == len(owed)


@pytest.mark.parametrize(
    "behaviour",
    [
        {"lose": 0.5},
        {"drop": 0.5},
        {"fail": 0.5},
        {"busy": 0.5},
        {"slow": 0.3, "pause": 0.8},
        {"lose": 0.2, "drop": 0.2, "fail": 0.2, "busy": 0.2, "slow": 0.1, "pause": 0.8},
    ],
    ids=lambda behaviour: "+".join(name for name in behaviour if name != "pause"),
)
def test_however_it_fails_each_is_paid_exactly_once(
    engine: Engine, provider: Provider, tmp_path: Path, behaviour: dict[str, float]
) -> None:
    owed = owe(engine)
    provider.behave(**behaviour)
    pay(engine, delivery(configuration(provider, tmp_path)))
    assert provider.paid == owed
    assert states(engine) == {"CONFIRMED": len(owed)}


def test_a_rejected_payout_returns_its_money_once_and_pays_nobody(
    engine: Engine, provider: Provider, tmp_path: Path
) -> None:
    owed = owe(engine, 4)
    provider.behave(reject=["org-001"], lose=0.3)
    pay(engine, delivery(configuration(provider, tmp_path)))
    assert provider.paid == [one for one in owed if one[0] != "org-001"]
    assert states(engine) == {"CONFIRMED": 3, "REJECTED": 1}
    assert rows(engine, "SELECT reason, returned_month FROM payout WHERE state = 'REJECTED'") == [
        ("account closed", None)
    ]


# It forgets its keys sooner than an answer is waited for anew: the same key would pay again.
FORGETFUL = {"remembers": 0, "deadline": 2}


def test_what_a_provider_may_have_forgotten_is_looked_up_before_it_is_asked_again(
    engine: Engine, start_provider: Callable[..., Provider], tmp_path: Path
) -> None:
    provider = start_provider(forget_after=0)
    owed = owe(engine)
    provider.behave(lose=0.4, fail=0.2, drop=0.2, slow=0.1, pause=2.5)
    pay(engine, delivery(configuration(provider, tmp_path, **FORGETFUL)))
    assert provider.paid == owed
    assert states(engine) == {"CONFIRMED": len(owed)}


def test_the_provider_does_pay_twice_when_it_is_asked_blindly(
    engine: Engine, start_provider: Callable[..., Provider], tmp_path: Path
) -> None:
    # What the test above would miss if its provider forgave.
    provider = start_provider(forget_after=0)
    owed = owe(engine, 4)
    provider.behave(lose=1)
    pay(engine, delivery(configuration(provider, tmp_path, remembers=3600, attempts=3)))
    assert len(provider.paid) > len(owed)


def test_without_a_look_up_a_forgotten_payout_waits_in_doubt(
    engine: Engine, start_provider: Callable[..., Provider], tmp_path: Path
) -> None:
    provider = start_provider(forget_after=0)
    owed = owe(engine, 4)
    provider.behave(lose=1)
    pay(engine, delivery(configuration(provider, tmp_path, in_doubt="hold", **FORGETFUL)))
    assert provider.paid == owed
    assert states(engine) == {"IN_DOUBT": 4}
    assert rows(engine, "SELECT DISTINCT kind FROM alert WHERE kind LIKE 'Payout%'") == [("PayoutInDoubt",)]


def test_a_key_that_could_be_forgotten_on_the_way_counts_as_forgotten(
    engine: Engine, start_provider: Callable[..., Provider], tmp_path: Path
) -> None:
    provider = start_provider(forget_after=1)
    owe(engine, 2)
    provider.behave(lose=1)
    # An attempt may take as long as the key is remembered.
    pay(engine, delivery(configuration(provider, tmp_path, in_doubt="hold", remembers=1, deadline=1)))
    assert states(engine) == {"IN_DOUBT": 2}
    sent = "SELECT DISTINCT attempts - attempts_forgiven FROM outbox_event WHERE event_type = 'PayoutRequested'"
    assert rows(engine, sent) == [(1,)]


def test_an_answer_that_breaks_off_is_asked_for_again(engine: Engine, provider: Provider, tmp_path: Path) -> None:
    owed = owe(engine, 2)
    provider.behave(break_off=1)
    pay(engine, delivery(configuration(provider, tmp_path)))
    assert provider.paid == owed
    assert states(engine) == {"CONFIRMED": 2}


def test_words_that_nobody_knows_are_no_confirmation(engine: Engine, provider: Provider, tmp_path: Path) -> None:
    owe(engine, 2)
    provider.behave(mumble=1)
    pay(engine, delivery(configuration(provider, tmp_path)))
    assert states(engine) == {"IN_DOUBT": 2}
    assert len(provider.paid) == 2


def test_a_key_that_was_used_for_something_else_returns_no_money(
    engine: Engine, provider: Provider, tmp_path: Path
) -> None:
    owe(engine, 1)
    [(key, reference)] = rows(
        engine, "SELECT CAST(event_id AS text), aggregate_id FROM outbox_event WHERE event_type = 'PayoutRequested'"
    )
    order = {"reference": reference, "organization": "org-000", "currency": "JPY", "amount": 1_000}
    provider.pay(key, **order)
    # Asked for our reference first, it would say that it has paid it.
    pay(engine, delivery(configuration(provider, tmp_path, in_doubt="hold")))
    assert states(engine) == {"IN_DOUBT": 1}
    assert len(provider.paid) == 1


def test_attempts_that_are_used_up_leave_a_doubt_that_is_asked_about_again(
    engine: Engine, provider: Provider, tmp_path: Path
) -> None:
    owed = owe(engine, 3)
    provider.behave(lose=1)
    to = configuration(provider, tmp_path, attempts=1)
    pay(engine, delivery(to))
    assert states(engine) == {"IN_DOUBT": 3}
    provider.behave()
    assert actions.ask_again(engine, Selection(MARCH), "eva", looked_up=True) == 3
    pay(engine, delivery(to))
    assert provider.paid == owed
    assert states(engine) == {"CONFIRMED": 3}


def test_nothing_is_sent_while_payouts_are_paused_or_held(engine: Engine, provider: Provider, tmp_path: Path) -> None:
    owed = owe(engine, 3)
    [(reference,)] = rows(engine, "SELECT CAST(public_id AS text) FROM payout ORDER BY id LIMIT 1")
    to = configuration(provider, tmp_path)
    decide(engine, pause, "the bank is closed", "ana")
    pay(engine, delivery(to), seconds=0.5)
    assert (provider.paid, under_way(engine)) == ([], 3)
    decide(engine, actions.hold, reference, "asked by the bank", "ana")
    decide(engine, resume)
    pay(engine, delivery(to))
    assert provider.paid == owed[1:]


def decide(engine: Engine, decision: Any, *arguments: Any) -> None:
    with transaction(engine) as connection:
        decision(connection, *arguments)


def test_the_bytes_of_every_attempt_are_the_same(engine: Engine, provider: Provider, tmp_path: Path) -> None:
    owe(engine, 1)
    provider.behave(lose=1)
    to = configuration(provider, tmp_path, attempts=3)
    pay(engine, delivery(to))
    [(key,)] = rows(engine, "SELECT event_id FROM outbox_event WHERE event_type = 'PayoutRequested'")
    with engine.connect() as connection:
        body = show(connection, KINDS, key).body
    assert body is not None
    data = json.loads(body)["data"]
    assert (data["amount"], data["currency"], data["month"]) == (1_000, "JPY", "2026-03")
    fingerprint = hashlib.sha256(body).hexdigest()
    assert [(entry.key, entry.fingerprint) for entry in provider.entries] == [(str(key), fingerprint)]
