"""What people see and decide at the terminal about movements that look wrong, and about whom they park."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine
from sqlalchemy.engine import URL

from tests.support.anomalous import chargeback, refund, sale
from tests.support.books import MARCH, settle_and_close
from tests.support.commands import output, refusal
from tests.support.homes import fresh_home, variables_for
from tests.support.payable import request, rows
from tests.support.rows import add_movement, add_organization
from tests.support.sql_statements import take
from ticketflow_orch.local.postgres import EmbeddedServer


@pytest.fixture(autouse=True)
def home(server: EmbeddedServer, scratch: Path, url: URL) -> Iterator[None]:
    """A home on a running server with a migrated database, in June 2026."""
    variables = variables_for(url, server.url("unused"))
    with fresh_home(scratch, **variables, TICKETFLOW_FIXED_CLOCK="2026-06-15T10:00:00Z"):
        yield


@pytest.fixture
def hall(engine: Engine) -> int:
    """An organization of which more came back than it took: 51.40 was refunded and charged back."""
    hall = add_organization(engine, external_ref="hall")
    sold = sale(engine, hall, external_ref="sold")
    refund(engine, hall, sold, external_ref="refunded")
    chargeback(engine, hall, sold, external_ref="charged")
    return hall


SOLD = "capture sold of 51.40: 51.40 more came back than it took, last by charged"


def test_what_looks_wrong_is_listed_until_somebody_accepts_it(engine: Engine, hall: int) -> None:
    add_organization(engine, external_ref="other")
    listed = output("anomalies", "list")
    assert [word in listed for word in ("hall", "51.40 EUR", SOLD)] == [True] * 3
    assert output("anomalies", "list", "--organization", "other") == "No movement looks wrong.\n"
    assert output("anomalies", "accept", "sold", "--by", "eva") == "1 question closed.\n"
    assert output("anomalies", "list") == "No movement looks wrong.\n"
    assert "eva" in output("anomalies", "list", "--accepted")
    assert refusal("anomalies", "accept", "sold").startswith("Nothing is open about movement 'sold'")
    assert refusal("anomalies", "accept", "nobody").startswith("There is no movement 'nobody'")


@pytest.mark.usefixtures("hall")
def test_the_audit_warns_and_ends_well() -> None:
    said = output("audit")
    assert "WARNING reversed_once: 1\n" in said
    assert f"hall EUR {SOLD}\n" in said
    assert "OK      captured_once\n" in said
    assert said.endswith("Nothing is broken; 1 to look at.\n")


@pytest.mark.usefixtures("hall")
def test_an_explanation_names_what_looks_wrong_and_who_accepted_it() -> None:
    assert f"looks wrong: EUR {SOLD}" in " ".join(output("explain", "hall", "2026-03").split())
    output("anomalies", "accept", "sold", "--by", "eva")
    assert f"looks wrong: EUR {SOLD}; accepted by eva" in " ".join(output("explain", "hall", "2026-03").split())


def test_the_command_that_parks_says_what_is_held_and_what_is_on_its_way(engine: Engine) -> None:
    for name in ("opera", "choir"):
        add_movement(engine, add_organization(engine, external_ref=name), 100_000, "2026-03-05T10:00")
    settle_and_close(engine, MARCH)
    request(engine)
    take(engine, "event_type = 'PayoutRequested' AND payload ->> 'organization' = 'choir'")
    [(choir,)] = rows(engine, "SELECT aggregate_id FROM outbox_event WHERE payload ->> 'organization' = 'choir'")
    assert output("park", "opera", "--reason", "disputed").splitlines() == [
        "opera is parked from 2026-04 on: disputed.",
        "1 payout held; `ticketflow unpark opera` sends it.",
    ]
    assert output("park", "choir", "--reason", "disputed").splitlines()[1:] == [
        f"Not held, because it was sent or is being sent: payout {choir}; ask the provider to stop it."
    ]
    assert output("unpark", "opera").splitlines()[1:] == ["1 payout let go."]
    assert len(output("unpark", "choir").splitlines()) == 1
