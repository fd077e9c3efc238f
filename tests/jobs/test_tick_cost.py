"""What an idle tick and a chunk of work cost the database: one probe of an index, a fixed number of statements."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, text

from tests.support.rows import add_event, add_movement, add_organization, add_reservation, instant
from tests.support.sql_statements import counted, executed
from ticketflow_orch.ticketing.events import close_events
from ticketflow_orch.ticketing.lifecycle import LifecycleRules
from ticketflow_orch.ticketing.reminders import ReminderRules, reminders_are_due, send_reminders
from ticketflow_orch.ticketing.reservations import expire_reservations, reservations_are_due

NOW = instant("2026-06-02T02:30")
MANY = 300_000
RULES = LifecycleRules(now=NOW, run_id="run", chunk_size=2)
REMINDERS = ReminderRules(now=NOW, kinds={"24h": timedelta(hours=24)}, chunk_size=2)
# Begun and released, round what may find that another run was first.
SAVEPOINT = 2


def probe(engine: Engine) -> dict[str, Any]:
    """How the server goes about the one question of a minute in which nothing is due, with the pages it touches."""
    with executed(engine) as found, engine.connect() as connection:
        assert not reservations_are_due(connection, RULES)
    [(statement, values)] = found
    with engine.connect() as connection:
        explained = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}"
        tree = connection.exec_driver_sql(explained, values).scalar_one()
    return dict((tree if isinstance(tree, list) else json.loads(tree))[0]["Plan"])


def nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for below in node.get("Plans", ()):
        yield from nodes(below)


@pytest.mark.every_server
def test_a_minute_with_nothing_due_is_one_probe_of_one_index_whatever_lies_in_the_table(engine: Engine) -> None:
    crowd(engine)
    tree = probe(engine)
    scans = [node for node in nodes(tree) if node.get("Relation Name") == "reservation"]
    assert [scan.get("Index Name") for scan in scans] == ["reservation_due_idx"]
    assert tree["Shared Hit Blocks"] + tree["Shared Read Blocks"] <= 8


def test_money_that_was_reported_is_out_of_the_way_of_every_minute(engine: Engine) -> None:
    over = add_event(engine, add_organization(engine))
    with engine.begin() as connection:
        connection.execute(text(PAID), {"event": over, "now": NOW, "many": 3_000})
        connection.execute(text(CAPTURED))
    assert expire_reservations(engine, replace(RULES, chunk_size=1_000)).stuck == 3_000
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM (ANALYZE) reservation, money_movement"))
    tree = probe(engine)
    [scan] = [node for node in nodes(tree) if node.get("Relation Name") == "reservation"]
    assert (scan["Index Name"], scan["Actual Rows"]) == ("reservation_due_idx", 0)
    assert tree["Shared Hit Blocks"] + tree["Shared Read Blocks"] <= 8


def test_a_quarter_of_an_hour_with_no_event_near_is_three_probes(engine: Engine) -> None:
    send_reminders(engine, REMINDERS)
    with counted(engine) as statements, engine.connect() as connection:
        assert not reminders_are_due(connection, REMINDERS)
    # What is left out, the kind, and the zones of its events.
    assert len(statements) == 3


@pytest.mark.parametrize("chunks", [1, 3])
def test_a_chunk_of_expiring_is_three_statements_and_a_savepoint(engine: Engine, chunks: int) -> None:
    later = add_event(engine, add_organization(engine), ends_at=NOW + timedelta(days=1))
    for _ in range(2 * chunks):
        add_reservation(engine, later)
    with counted(engine) as statements:
        assert expire_reservations(engine, RULES).reservations == 2 * chunks
    # Two for the clocks, what is left out, one look that finds nothing more, and one for what is left.
    assert len(statements) == 2 + (3 + SAVEPOINT) * chunks + 3


def test_a_chunk_of_reporting_is_three_statements_and_a_savepoint(engine: Engine) -> None:
    organization = add_organization(engine)
    later = add_event(engine, organization, ends_at=NOW + timedelta(days=1))
    for _ in range(6):
        add_movement(engine, organization, 100, "2026-05-01T10:05", reservation_id=add_reservation(engine, later))
    with counted(engine) as statements:
        assert expire_reservations(engine, RULES).stuck == 6
    assert len(statements) == 2 + (3 + SAVEPOINT) * 3 + 3


@pytest.mark.parametrize("chunks", [1, 3])
def test_a_chunk_of_closing_is_four_statements_and_a_savepoint_however_many_reservations(
    engine: Engine, chunks: int
) -> None:
    organization = add_organization(engine)
    for _ in range(2 * chunks):
        over = add_event(engine, organization)
        for _ in range(3):
            add_reservation(engine, over)
    with counted(engine) as statements:
        assert close_events(engine, RULES).reservations_expired == 6 * chunks
    # Two for the clocks, what is left out, one look that finds nothing more, the sweep (its patience, its look), and
    # one for what is left.
    assert len(statements) == 2 + (4 + SAVEPOINT) * chunks + 2 + 2 + 1


@pytest.mark.parametrize("chunks", [1, 3])
def test_a_chunk_of_reminding_is_three_statements_and_a_savepoint_however_many_events(
    engine: Engine, chunks: int
) -> None:
    send_reminders(engine, ReminderRules(now=instant("2026-01-01T00:00"), kinds=REMINDERS.kinds))
    organization = add_organization(engine)
    for _ in range(2 * chunks):
        soon = add_event(engine, organization, starts_at=NOW + timedelta(hours=9), ends_at=NOW + timedelta(hours=10))
        add_reservation(engine, soon, status="CONFIRMED", confirmed_at=instant("2026-05-01T10:00"))
    with counted(engine) as statements:
        assert send_reminders(engine, REMINDERS).queued == 2 * chunks
    # The kind, its zones, what is left out, one look that finds nothing more, and two ends of what was left out.
    assert len(statements) == (3 + SAVEPOINT) * chunks + 6


def crowd(engine: Engine) -> None:
    """Reservations of all states, none of which is due: of the past, paid, stuck, and held for later."""
    held_for = add_event(engine, add_organization(engine), ends_at=NOW + timedelta(days=90))
    with engine.begin() as connection:
        # Without the triggers, which look at each row: this is about what lies there, not how it came.
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        connection.execute(text(CROWD), {"event": held_for, "now": NOW, "many": MANY})
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM (ANALYZE) reservation"))


PAID = """
    INSERT INTO reservation (public_ref, event_id, buyer_email, quantity, status, created_at, expires_at)
    SELECT 'paid-' || number, :event, 'buyer@example.com', 1, 'ACTIVE', CAST(:now AS timestamptz) - interval '30 days',
        CAST(:now AS timestamptz) - interval '1 day'
    FROM generate_series(1, CAST(:many AS integer)) AS number
"""

CAPTURED = """
    INSERT INTO money_movement (external_ref, organization_id, reservation_id, kind, currency, amount,
        commission_rate_bps, commission_tax_bps, occurred_at)
    SELECT 'of-' || public_ref, organization_id, reservation.id, 'CAPTURE', 'EUR', 100, 0, 0, created_at
    FROM reservation JOIN event ON event.id = event_id
"""

CROWD = """
    INSERT INTO reservation (public_ref, event_id, buyer_email, quantity, status, created_at, expires_at,
        confirmed_at, expired_at, stuck_reported_at, payment_started_at)
    SELECT 'crowd-' || number, :event, 'buyer@example.com', 1, s.status, CAST(:now AS timestamptz) - interval '30 days',
        CAST(:now AS timestamptz) + CASE WHEN s.status = 'ACTIVE' AND NOT stuck THEN 1 ELSE -1 END
            * number * interval '1 second',
        CASE WHEN s.status = 'CONFIRMED' THEN CAST(:now AS timestamptz) END,
        CASE WHEN s.status = 'EXPIRED' THEN CAST(:now AS timestamptz) END,
        CASE WHEN stuck THEN CAST(:now AS timestamptz) END,
        CASE WHEN stuck THEN CAST(:now AS timestamptz) - interval '1 day' END
    FROM generate_series(1, CAST(:many AS integer)) AS number,
        LATERAL (SELECT (ARRAY['CONFIRMED', 'EXPIRED', 'ACTIVE', 'CANCELLED'])[number % 4 + 1] AS status) AS s,
        LATERAL (SELECT s.status = 'ACTIVE' AND number % 100 = 2 AS stuck) AS t
"""
