"""Ids are made of the installation and of the key, so that a restored database makes the same ones."""

from __future__ import annotations

import hashlib
import uuid

import pytest
from sqlalchemy import Engine

from tests.support.payable import request, rows
from tests.support.restoring import NAMES, owe
from tests.support.sql_statements import execute, refusal
from ticketflow_orch.db.installation import read_installation


def derived(engine: Engine, name: str) -> uuid.UUID:
    """The id that `name` makes, by RFC 9562's appendix B.2."""
    with engine.connect() as connection:
        installation = read_installation(connection).id
    digest = hashlib.sha256(installation.bytes + name.encode()).digest()
    number = int.from_bytes(digest[:16]) & ~(0xF << 76) & ~(0x3 << 62)
    return uuid.UUID(int=number | 0x8 << 76 | 0x2 << 62)


@pytest.mark.every_server
def test_ids_are_uuids_of_version_8_made_of_the_installation_and_the_key(engine: Engine) -> None:
    owe(engine, [("Ñandú:EUR", "EUR", 1_000)], ["Ñandú:EUR"])
    request(engine)
    [(payout,)] = rows(engine, "SELECT public_id FROM payout")
    assert payout == derived(engine, "payout:Ñandú:EUR:EUR:2026-03")
    assert (payout.version, payout.variant) == (8, uuid.RFC_4122)
    [(event,)] = rows(engine, "SELECT event_id FROM outbox_event WHERE event_type = 'PayoutRequested'")
    assert event == derived(engine, f"outbox_event:PayoutRequested:{payout}")


PUT = "INSERT INTO outbox_event ({}aggregate_type, aggregate_id, event_type, payload, dedupe_key, occurred_at)"


@pytest.mark.every_server
def test_an_event_that_is_given_no_id_gets_its_own_and_no_other_is_taken(engine: Engine) -> None:
    execute(engine, f"{PUT.format('')} VALUES ('thing', '1', 'Told', '{{}}', 'Told:1', now())")
    assert rows(engine, "SELECT event_id FROM outbox_event") == [(derived(engine, "outbox_event:Told:1"),)]
    other = f"{PUT.format('event_id, ')} VALUES (gen_random_uuid(), 'thing', '2', 'Told', '{{}}', 'Told:2', now())"
    assert "the id of event Told:2 is not the one that its key makes" in refusal(engine, other)


def test_a_payout_that_is_given_no_reference_gets_its_own_and_no_other_is_taken(engine: Engine) -> None:
    owe(engine)
    put = "INSERT INTO payout ({}organization_id, currency, month, amount, state) SELECT {}organization_id, currency, "
    put += "month, payable, 'HELD' FROM organization_balance ORDER BY organization_id"
    assert "the reference of a payout to org-00" in refusal(engine, put.format("public_id, ", "gen_random_uuid(), "))
    execute(engine, put.format("", ""))
    written = "SELECT public_id FROM payout ORDER BY organization_id"
    assert rows(engine, written) == [(derived(engine, f"payout:{name}:EUR:2026-03"),) for name in NAMES]
