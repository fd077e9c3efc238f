"""A buyer who is erased is nowhere any more that lets go of them, and what stays says why."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.engine import URL
from typer.testing import CliRunner

from tests.support.homes import fresh_home, variables_for
from tests.support.rows import add_event, add_movement, add_organization, add_reservation, instant
from tests.support.sql_statements import execute
from ticketflow_orch import cli
from ticketflow_orch.db.engine import transaction
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.ticketing.erasure import ERASED, Buyer, Erasure, erase

NOW = instant("2026-06-02T12:00")
CANARY = "Canary.Bird+1@example.com"
NAME = "Canary (O'Bird)"


def erased(engine: Engine, *, dry_run: bool = False, **changes: Any) -> Erasure:
    with transaction(engine) as connection:
        return erase(
            connection, Buyer(**{"address": CANARY, "now": NOW, "after": timedelta(days=60)} | changes), dry_run=dry_run
        )


def bought(engine: Engine, reference: str, *, ended: timedelta, paid: int = 0, **values: Any) -> int:
    """A reservation of the buyer whose event ended so long ago; returns its organization."""
    organization = add_organization(engine)
    event = add_event(
        engine,
        organization,
        external_ref=f"event-{reference}",
        ends_at=NOW - ended,
        starts_at=NOW - ended - timedelta(hours=2),
    )
    held = add_reservation(engine, event, public_ref=reference, buyer_email=CANARY.lower(), **values)
    if paid:
        add_movement(engine, organization, paid, "2026-01-01T10:00", reservation_id=held)
    return organization


def confirmed(engine: Engine, reference: str, ended: timedelta) -> None:
    bought(engine, reference, ended=ended, paid=100, status="CONFIRMED", confirmed_at=instant("2026-01-01T10:05"))


def mailed(engine: Engine, reference: str, state: str = "DELIVERED", **values: str) -> None:
    """A mail about the reservation, with the buyer in it."""
    row = {
        "payload": f'{{"ref": "{reference}"}}',
        "body": f"To: {CANARY}",
        "last_error": "",
        "last_response": "",
    } | values
    ended = "now()" if state == "DELIVERED" else "NULL"
    execute(
        engine,
        f"""
        INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload, dedupe_key, occurred_at, state,
            available_at, ended_at, body, last_error, last_response)
        VALUES ('reservation', :reference, 'ReminderDue', CAST(:payload AS jsonb), :key, now(), :state, NULL, {ended},
            convert_to(:body, 'UTF8'), :last_error, :last_response)
        """,
        reference=reference, state=state, key=f"{reference} {row}", **row,
    )  # fmt: skip


def tables_with(engine: Engine, word: str) -> set[str]:
    """The tables in which any row holds the word, whatever its case, in bytes too."""
    with engine.connect() as connection:
        tables = connection.execute(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")).scalars().all()
        found = set()
        for table in tables:
            rows = connection.execute(text(f'SELECT CAST("{table}" AS text) FROM "{table}"')).scalars()
            hidden = word.encode().hex()
            if any(word.lower() in row.lower() or hidden in row for row in rows):
                found.add(table)
        return found


@pytest.mark.every_server
def test_an_erased_buyer_is_in_no_table_any_more(engine: Engine) -> None:
    confirmed(engine, "long-ago", timedelta(days=61))
    bought(engine, "unpaid", ended=timedelta(days=-30), status="CANCELLED")
    mailed(engine, "long-ago")
    mailed(engine, "elsewhere", payload=f'{{"ref": "elsewhere", "to": "{CANARY}"}}', body="")
    mailed(engine, "refused", last_error=f"550 <{CANARY}>: unknown", body="")
    mailed(engine, "named", last_response=f"for {NAME}", body="")
    execute(
        engine,
        """
        INSERT INTO job_execution (job, idempotency_key, state, owner, finished_at, result)
        VALUES ('any', 'one', 'COMPLETED', 'me', now(), jsonb_build_object(
            'bad', jsonb_build_array(CAST(:error AS text), CAST(:name AS text)), 'left', 3))
        """,
        error=f"Failing row contains ({CANARY})", name=NAME,
    )  # fmt: skip
    # A table that a later version records something in.
    execute(engine, "CREATE TABLE noted (id text PRIMARY KEY, words text, other jsonb)")
    execute(engine, "INSERT INTO noted VALUES ('one', :words, '{}')", words=f"mailed {CANARY.upper()} and {NAME}")
    held = {"reservation", "outbox_event", "job_execution", "noted"}
    assert tables_with(engine, CANARY) == held

    foreseen = erased(engine, name=NAME, dry_run=True)
    assert tables_with(engine, CANARY) == held
    done = erased(engine, name=NAME)
    assert foreseen == done
    assert [(one.reservation, one.stays) for one in done.reservations] == [("long-ago", None), ("unpaid", None)]
    assert (done.events, done.left) == (4, ())
    assert tables_with(engine, CANARY) == tables_with(engine, NAME) == set()
    with engine.connect() as connection:
        assert connection.execute(text("SELECT DISTINCT buyer_email FROM reservation")).scalars().all() == [ERASED]
        assert connection.execute(text("SELECT result FROM job_execution")).scalar_one() == {
            "bad": ["Failing row contains (erased)", "erased"], "left": 3
        }  # fmt: skip
        assert connection.execute(text("SELECT words FROM noted")).scalar_one() == "mailed erased and erased"
    assert erased(engine, name=NAME) == Erasure((), 0, 0, ())


def test_other_buyers_keep_what_is_theirs(engine: Engine) -> None:
    confirmed(engine, "long-ago", timedelta(days=61))
    execute(engine, "UPDATE reservation SET buyer_email = 'not-' || buyer_email")
    mailed(engine, "long-ago", body="To: somebody@example.com")
    assert erased(engine) == Erasure((), 0, 0, ())
    assert tables_with(engine, "somebody@example.com") == {"outbox_event"}


@pytest.mark.parametrize(
    "others",
    ["not-{}", "mc.{}", "x{}", "{}.au", "{}x", "x+{}"],
)
def test_an_address_that_ends_or_begins_like_theirs_is_somebody_elses(engine: Engine, others: str) -> None:
    other = others.format(CANARY)
    mailed(engine, "r", body=f"To: {other}", payload=f'{{"ref": "r", "said": "{other}"}}')
    execute(engine, "CREATE TABLE noted (id text PRIMARY KEY, words text)")
    execute(engine, "INSERT INTO noted VALUES ('1', :words)", words=f"{other} bounced")
    assert erased(engine) == Erasure((), 0, 0, ())
    assert tables_with(engine, other) == {"outbox_event", "noted"}


@pytest.mark.parametrize("around", ["<{}>", "\n{}\n", "mailto:{}", "({}).", "\u201e{}\u201c", "{}\\n", "'{}'"])
def test_an_address_is_found_whatever_stands_around_it(engine: Engine, around: str) -> None:
    written = around.format(CANARY.upper())
    mailed(engine, "r", body=written)
    mailed(engine, "s", body="", last_error=written)
    mailed(engine, "t", body="", payload=json.dumps({"ref": "t", "said": written}))
    assert erased(engine).events == 3


@pytest.mark.parametrize(("name", "written", "found"), [
    ("Anna", "Joanna, Annabel", False),
    ("Anna", "dear Anna!", True),
    ("Zo\u00eb F", "an Zo\u00eb F:", True),
    ("Zo\u00eb F", "Zo\u00eb Fs", False),
    ("O'Neil (jr)", "for O'Neil (jr).", True),
    ("a\\b.c", "a\\b.c", True),
    ("a\\b.c", "a\\bxc", False),
])  # fmt: skip
def test_a_name_is_no_part_of_a_longer_one(engine: Engine, name: str, written: str, found: bool) -> None:
    mailed(engine, "r", body=written)
    mailed(engine, "s", body="", last_error=written)
    assert erased(engine, name=name).events == (2 if found else 0)


@pytest.mark.parametrize(
    ("ended", "values", "why"),
    [
        (
            timedelta(days=-3),
            {"status": "CONFIRMED", "confirmed_at": instant("2026-01-01T10:05")},
            "its event ends 2026-06-05",
        ),
        (
            timedelta(days=59),
            {"status": "CONFIRMED", "confirmed_at": instant("2026-01-01T10:05")},
            "disputes come until",
        ),
        (timedelta(days=-3), {"status": "ACTIVE"}, "it is being bought"),
        (
            timedelta(days=-3),
            {"status": "ACTIVE", "stuck_reported_at": instant("2026-06-01T00:00")},
            "its payment is stuck",
        ),
        (timedelta(days=90), {"status": "CANCELLED", "paid": 100}, "its money is here and has no ticket"),
    ],
)
def test_what_the_law_does_not_let_go_stays_with_its_mails_and_says_why(
    engine: Engine, ended: timedelta, values: dict[str, Any], why: str
) -> None:
    bought(engine, "R-1", ended=ended, **values)
    mailed(engine, "R-1")
    done = erased(engine)
    [one] = done.reservations
    assert why in str(one.stays)
    assert [reason for _, reason in done.left] == ["it is about a reservation that stays"]
    assert tables_with(engine, CANARY) == {"reservation", "outbox_event"}


@pytest.mark.parametrize("state", ["DEAD", "IN_DOUBT", "HELD"])
def test_what_is_not_delivered_yet_stays_and_names_the_way(engine: Engine, state: str) -> None:
    confirmed(engine, "R-1", timedelta(days=61))
    mailed(engine, "R-1", state)
    [(event_id, why)] = erased(engine).left
    assert why == f"it is {state}: deliver it, or drop it by `ticketflow outbox drop {event_id}`, and erase again"


def test_a_word_that_is_in_every_text_is_not_looked_for(engine: Engine) -> None:
    with pytest.raises(TicketflowError, match="'Bob' is in too many texts"):
        erased(engine, name="Bob")
    with pytest.raises(TicketflowError, match="'everybody' is no e-mail address"):
        erased(engine, address="everybody")


@pytest.fixture
def home(server: EmbeddedServer, scratch: Path, url: URL) -> Iterator[None]:
    with fresh_home(scratch, **variables_for(url, server.url("absent"))):
        yield


def test_the_command_says_what_is_erased_and_what_stays_where(engine: Engine, home: None) -> None:
    bought(engine, "R-1", ended=timedelta(days=400), status="CANCELLED")
    asked = ["erase", CANARY]
    foreseen = CliRunner().invoke(cli.app, [*asked, "--dry-run"]).output
    assert "1 reservation, 0 events of the outbox and 0 records would be erased." in foreseen
    assert tables_with(engine, CANARY) == {"reservation"}
    told = CliRunner().invoke(cli.app, asked).output
    assert "1 reservation, 0 events of the outbox and 0 records erased." in told
    assert "Movements, ledger and statements stay for as long as the law keeps books" in told
    assert tables_with(engine, CANARY) == set()
