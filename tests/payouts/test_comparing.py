"""A provider's list names what we no longer know, after a restore or a promotion, and what else does not agree."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Engine

from tests.support.payable import MARCH, NOW, request
from tests.support.payments import books, configuration, delivery, differences, pay
from tests.support.provider import Provider
from tests.support.restoring import OWED, backup, owe
from tests.support.sql_statements import execute
from ticketflow_orch.errors import InvalidInput
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.payouts.comparing import Listed, read_listed


@pytest.fixture
def provider(start_provider: Callable[..., Provider]) -> Provider:
    return start_provider()


def paid(engine: Engine, provider: Provider, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    request(engine, now=NOW)
    pay(engine, delivery(configuration(provider, folder)))


def test_what_a_restored_database_lost_is_named_until_it_is_asked_for_again(
    server: EmbeddedServer, engine: Engine, provider: Provider, tmp_path: Path
) -> None:
    owe(engine)
    with backup(server, engine) as restored:
        paid(engine, provider, tmp_path / "a")
        assert differences(engine, books(provider), MARCH) == []
        lost = differences(restored, books(provider), MARCH)
        assert sorted((one.organization, one.month) for one in lost) == [(name, MARCH) for name, _, _ in OWED]
        assert {one.what for one in lost} == {
            "confirmed there and not asked for here: the next run of payouts asks under the same reference"
        }
        request(restored, now=NOW)
        assert {one.what for one in differences(restored, books(provider))} == {
            "confirmed there and REQUESTED here: the relay asks again, or `ticketflow payouts resolve`"
        }
        paid(restored, provider, tmp_path / "b")
        assert differences(restored, books(provider), MARCH) == []
    assert provider.paid == OWED


def test_a_month_whose_closing_was_lost_is_named(
    server: EmbeddedServer, engine: Engine, provider: Provider, tmp_path: Path
) -> None:
    with backup(server, engine) as restored:
        owe(engine)
        paid(engine, provider, tmp_path / "a")
        assert {one.what.partition(":")[0] for one in differences(restored, books(provider))} == {
            "confirmed there and unknown here"
        }


def test_other_amounts_other_answers_and_payments_made_twice_are_named(
    engine: Engine, provider: Provider, tmp_path: Path
) -> None:
    owe(engine)
    paid(engine, provider, tmp_path / "a")
    first, second, third, *rest = books(provider)
    wrong = [
        first,
        first,
        Listed(second.reference, second.currency, second.amount + 1, "confirmed"),
        Listed(third.reference, third.currency, third.amount, "rejected"),
        *rest[1:],
    ]
    found = {one.reference: one.what for one in differences(engine, wrong, MARCH)}
    assert found[first.reference].startswith("was paid 2 times")
    assert found[second.reference].startswith(f"{second.amount + 1} minor units of EUR there")
    assert found[third.reference].startswith("rejected there and CONFIRMED here")
    assert found[rest[0].reference].startswith("is confirmed here and not in the list")
    assert len(found) == 4


def test_a_payment_that_came_back_here_and_was_made_there_is_named(engine: Engine) -> None:
    owe(engine, OWED[:1])
    request(engine)
    execute(engine, "UPDATE payout SET state = 'REJECTED', answered_at = now()")
    with engine.connect() as connection:
        row = connection.exec_driver_sql("SELECT public_id, currency, amount FROM payout").one()
    [one] = differences(engine, [Listed(row.public_id, row.currency, row.amount, "confirmed")])
    assert one.what.startswith("confirmed there and REJECTED here")


@pytest.mark.parametrize(
    "line",
    ["reference", "{}", '{"reference": "x", "currency": "EUR", "amount": 1, "status": "confirmed"}', "[1]"],
)
def test_a_line_that_is_no_payment_is_named_by_its_number(line: str) -> None:
    with pytest.raises(InvalidInput, match="Line 2 is no payment"):
        list(read_listed(["\n", line]))


def test_a_status_that_nobody_knows_is_refused() -> None:
    reference = "00000000-0000-4000-8000-000000000000"
    line = json.dumps({"reference": reference, "currency": "EUR", "amount": 1, "status": "paid"})
    with pytest.raises(InvalidInput, match="Line 1 has the status 'paid'; write confirmed or rejected"):
        list(read_listed([line]))
