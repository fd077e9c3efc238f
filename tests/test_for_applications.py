"""What the page for applications says is what the database takes, and its order of steps loses no money."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from sqlalchemy import Engine, text

from tests.support.rows import add_event, add_organization, add_reservation, instant
from tests.support.sql_statements import execute
from ticketflow_orch.clock import now
from ticketflow_orch.ticketing.captures import money_without_ticket
from ticketflow_orch.ticketing.lifecycle import LifecycleRules
from ticketflow_orch.ticketing.reservations import expire_reservations

PAGE = Path(__file__).parents[1] / "docs" / "for-applications.md"
STEPS = dict(re.findall(r"```sql\n-- ([a-z ]+)\n(.*?);\n```", PAGE.read_text("utf-8"), re.DOTALL))
RACES = int(os.environ.get("RACES", "40"))


def step(engine: Engine, name: str, **values: Any) -> int:
    """Do one step of the page in a transaction of its own; how many rows it wrote."""
    return execute(engine, STEPS[name], **values)


def status(engine: Engine, reference: str) -> str:
    with engine.connect() as connection:
        return str(
            connection.execute(
                text("SELECT status FROM reservation WHERE public_ref = :r"), {"r": reference}
            ).scalar_one()
        )


def captured(provider_id: str, reference: str) -> dict[str, Any]:
    return {
        "provider_id": provider_id, "ref": reference, "currency": "EUR", "amount": 4_000, "occurred_at": now(),
    }  # fmt: skip


@pytest.mark.every_server
def test_a_sale_from_its_hold_to_its_refund_goes_as_the_page_says(engine: Engine) -> None:
    add_event(engine, add_organization(engine), external_ref="concert", ends_at=instant("2036-06-01T20:00"))
    hold = {"ref": "R-1", "buyer": "ana@example.com", "quantity": 2, "event": "concert"}
    assert [step(engine, "hold", **hold) for _ in range(2)] == [1, 0]
    assert step(engine, "begin payment", ref="R-1") == 1
    assert [step(engine, "record the money", **captured("pay-1", "R-1")) for _ in range(2)] == [1, 0]
    assert [step(engine, "confirm", ref="R-1") for _ in range(2)] == [1, 0]
    assert step(engine, "begin payment", ref="R-1") == 0
    refund = {"provider_id": "refund-1", "captured_as": "pay-1", "amount": -1_000, "occurred_at": now()}
    assert [step(engine, "refund", **refund) for _ in range(2)] == [1, 0]
    assert step(engine, "cancel", ref="R-1") == 1
    assert [step(engine, "void", wrong="refund-1") for _ in range(2)] == [1, 0]
    with engine.connect() as connection:
        amounts = connection.execute(text("SELECT amount FROM money_movement ORDER BY id")).scalars().all()
    assert amounts == [4_000, -1_000, 1_000]
    assert set(STEPS) == {"hold", "begin payment", "record the money", "confirm", "refund", "cancel", "void"}


def test_money_that_is_recorded_first_is_never_lost_to_expiry(engine: Engine) -> None:
    evening = add_event(engine, add_organization(engine), ends_at=instant("2036-06-01T20:00"))
    references = [f"R-{number}" for number in range(RACES)]
    for reference in references:
        add_reservation(engine, evening, public_ref=reference)
    together = Barrier(2)

    def expire(_: str) -> None:
        together.wait()
        expire_reservations(engine, LifecycleRules(now(), "run", chunk_size=1))

    def pay(reference: str) -> int:
        together.wait()
        step(engine, "record the money", **captured(f"pay-{reference}", reference))
        return step(engine, "confirm", ref=reference)

    confirmed: Sequence[int] = []
    with ThreadPoolExecutor(2) as threads:
        for reference in references:
            expiring, paying = threads.submit(expire, reference), threads.submit(pay, reference)
            expiring.result()
            confirmed = [*confirmed, paying.result()]
    with engine.connect() as connection:
        recorded = connection.execute(text("SELECT count(*) FROM money_movement")).scalar_one()
        unticketed = {money.reservation for money in money_without_ticket(connection, RACES)}
    assert recorded == RACES
    for reference, is_confirmed in zip(references, confirmed, strict=True):
        ended = status(engine, reference)
        assert ended == ("CONFIRMED" if is_confirmed else "EXPIRED")
        assert (reference in unticketed) == (ended == "EXPIRED")
