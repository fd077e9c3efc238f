"""Two payouts under one reference of the provider, and one under two."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from tests.support.payable import NOW, request, rows
from tests.support.provider_by_hand import recorded, said
from tests.support.restoring import NAMES, OWED, health, owe
from ticketflow_orch.db.engine import transaction
from ticketflow_orch.payouts import actions
from ticketflow_orch.payouts.queries import payouts


def confirmed_alike(engine: Engine, provider_ref: str = "po_1") -> list[str]:
    """Two payouts that the provider confirmed under one reference."""
    owe(engine, OWED[:2], NAMES[:2])
    request(engine)
    recorded(engine, "DELIVERED", said({"status": "confirmed", "provider_ref": provider_ref}))
    return [str(reference) for (reference,) in rows(engine, "SELECT public_id FROM payout ORDER BY id")]


def shared_lines(engine: Engine) -> list[str]:
    return [line for line in health(engine) if "one reference" in line]


def test_two_payouts_confirmed_under_one_reference_are_alerted_and_listed(engine: Engine) -> None:
    first, second = confirmed_alike(engine)
    told = "SELECT payload FROM outbox_event WHERE event_type = 'PayoutReferenceShared'"
    payload = {"provider_ref": "po_1", "payouts": [first, second], "severity": "page", "subject": "po_1"}
    assert rows(engine, told) == [(payload,)]
    [line] = shared_lines(engine)
    assert line.startswith("payouts: 2 are confirmed under one reference of the provider, po_1, since ")
    assert f"ask the provider which of {first}, {second} it paid" in line
    with engine.connect() as connection:
        assert [one.shares for one in payouts(connection)] == [True, True]


@pytest.mark.parametrize("way", ["returned", "its own"])
def test_what_stands_in_the_way_of_a_shared_reference_ends_when_a_person_has_found_out(
    engine: Engine, way: str
) -> None:
    first, second = confirmed_alike(engine)
    with transaction(engine) as connection:
        if way == "returned":
            actions.return_payout(connection, second, "never paid", "ana")
        else:
            actions.confirm(connection, second, "ana", "po_2", now=NOW)
    assert shared_lines(engine) == []
    kept = f"SELECT state, provider_ref FROM payout WHERE public_id = '{first}'"
    assert rows(engine, kept) == [("CONFIRMED", "po_1")]
    with engine.connect() as connection:
        assert [one.shares for one in payouts(connection)] == [False, False]


def test_a_payout_keeps_a_reference_that_nobody_shares(engine: Engine) -> None:
    [first, second] = confirmed_alike(engine)
    with transaction(engine) as connection:
        actions.confirm(connection, second, "ana", "po_2", now=NOW)
    with pytest.raises(Exception, match="is CONFIRMED"), transaction(engine) as connection:
        actions.confirm(connection, first, "ana", "po_3", now=NOW)


def test_one_payout_under_two_references_is_told(engine: Engine) -> None:
    owe(engine, OWED[:1], NAMES[:1])
    request(engine)
    for provider_ref in ("po_1", "po_2", "po_2"):
        recorded(engine, "DELIVERED", said({"status": "confirmed", "provider_ref": provider_ref}))
    assert rows(engine, "SELECT kind, right(key, 4) FROM alert") == [("PayoutContradicted", "po_2")]
    assert rows(engine, "SELECT provider_ref FROM payout") == [("po_1",)]
