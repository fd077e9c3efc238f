"""The demo's payment provider: answers as one does, and only about the demo's organizations."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Engine

from tests.outbox.delivery.messages import message, no_commit
from tests.support.payable import close_with, request, rows
from tests.support.rows import add_organization
from ticketflow_orch.cli.demo import DELIVERY
from ticketflow_orch.event_handlers import KINDS
from ticketflow_orch.outbox.delivery import Message, Verdict
from ticketflow_orch.outbox.delivery.configuration import read_delivery
from ticketflow_orch.outbox.delivery.demo import DemoProvider
from ticketflow_orch.outbox.relay import drain
from ticketflow_orch.settings import Settings


def payout(organization: str) -> Message:
    order = {"reference": str(uuid.uuid4()), "organization": organization, "currency": "EUR", "amount": 100}
    return replace(message(), event_type="PayoutRequested", data=json.dumps(order))


def test_the_same_payout_gets_the_same_answer_as_often_as_it_is_sent(tmp_path: Path) -> None:
    asked = payout("demo-00001")
    provider = DemoProvider(tmp_path / "outbox.jsonl")
    first, second = (provider.send(asked, no_commit) for _ in range(2))
    provider.close()
    assert first == second
    assert (first.verdict, first.status, json.loads(first.response)["status"]) == (Verdict.DELIVERED, 200, "confirmed")
    assert (tmp_path / "outbox.jsonl").read_text("utf-8").count("\n") == 2


def test_a_payout_of_a_real_organization_is_never_confirmed(tmp_path: Path) -> None:
    outcome = DemoProvider(tmp_path / "outbox.jsonl").send(payout("teatro"), no_commit)
    assert outcome.verdict is Verdict.REFUSED
    assert outcome.error is not None
    assert "'teatro' is none of the demo's organizations" in outcome.error
    assert not (tmp_path / "outbox.jsonl").exists()


@pytest.mark.every_server
def test_a_payout_that_the_relay_sends_is_confirmed_with_its_reference(engine: Engine, tmp_path: Path) -> None:
    close_with(engine, [(add_organization(engine, external_ref="demo-1"), "EUR", 500)])
    request(engine)
    (tmp_path / "delivery.toml").write_text(DELIVERY, "utf-8")
    delivery = read_delivery(Settings(home=tmp_path), {})
    assert drain(engine, delivery, KINDS, budget=60).delivered >= 1
    delivery.close()
    assert rows(engine, "SELECT state, provider_ref = 'demo-' || public_id FROM payout") == [("CONFIRMED", True)]
