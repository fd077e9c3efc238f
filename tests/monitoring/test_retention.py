"""What housekeeping deletes from TicketFlow's tables, and what it leaves however old it is."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, text

from tests.support.rows import add_event, add_organization, add_reservation
from tests.support.sql_statements import deliver, execute, refusal
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.monitoring.retention import (
    RetentionRules,
    prune_alerts,
    prune_claims,
    prune_firings,
    prune_outbox,
    prune_reminders,
)
from ticketflow_orch.settings import read_settings
from ticketflow_orch.ticketing.reminders import ReminderRules, send_reminders

OLD, RECENT = "now() - interval '91 days'", "now() - interval '89 days'"
RULES = RetentionRules(timedelta(days=90), ["expire_reservations"], batch_size=2)


def column(engine: Engine, query: str) -> Sequence[Any]:
    with engine.connect() as connection:
        return connection.execute(text(query)).scalars().all()


def add_outbox_event(engine: Engine, key: str, state: str, at: str) -> None:
    ended = at if state in {"DELIVERED", "SUPPRESSED"} else "NULL"
    available = at if state in {"PENDING", "INFLIGHT"} else "NULL"
    lease, owner = (at, "'nobody'") if state == "INFLIGHT" else ("NULL", "NULL")
    execute(
        engine,
        f"""
        INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload, dedupe_key, occurred_at, state,
            ended_at, available_at, lease_until, owner)
        VALUES ('event', 'one', 'EventClosed', '{{}}', :key, {at}, :state, {ended}, {available}, {lease}, {owner})
        """,
        key=key,
        state=state,
    )


def add_claim(engine: Engine, job: str, at: str, state: str = "COMPLETED") -> None:
    lease, finished = ("now()", "NULL") if state == "PROCESSING" else ("NULL", "now()")
    execute(
        engine,
        f"""
        INSERT INTO job_execution (job, idempotency_key, state, owner, lease_until, finished_at)
        VALUES (:job, to_char({at}, 'YYYY-MM-DD"T"HH24:MI:00+00:00'), :state, 'nobody', {lease}, {finished})
        """,
        job=job,
        state=state,
    )


@pytest.mark.every_server
def test_events_that_were_told_long_ago_go_in_batches(engine: Engine) -> None:
    for number in range(5):
        add_outbox_event(engine, f"delivered {number}", "DELIVERED", OLD)
    add_outbox_event(engine, "suppressed", "SUPPRESSED", OLD)
    for state in ("DELIVERED", "SUPPRESSED"):
        add_outbox_event(engine, f"recent {state}", state, RECENT)

    assert prune_outbox(engine, RULES) == 6
    assert sorted(column(engine, "SELECT dedupe_key FROM outbox_event")) == ["recent DELIVERED", "recent SUPPRESSED"]
    assert prune_outbox(engine, RULES) == 0


@pytest.mark.parametrize("state", ["PENDING", "INFLIGHT", "DEAD", "IN_DOUBT", "HELD"])
def test_an_event_that_is_not_over_and_done_with_stays_however_old(engine: Engine, state: str) -> None:
    add_outbox_event(engine, "one", state, OLD)
    assert prune_outbox(engine, RULES) == 0


def test_a_reminder_stays_without_its_event_and_still_reminds_nobody_twice(engine: Engine) -> None:
    event = add_event(engine, add_organization(engine))
    bought = add_reservation(engine, event, status="CONFIRMED", confirmed_at="2026-05-01T10:05Z")
    [starts_at] = column(engine, "SELECT starts_at FROM event")
    rules = ReminderRules(starts_at - timedelta(hours=23), {"24h": timedelta(hours=24)})
    execute(engine, "INSERT INTO reminder_kind VALUES ('24h', '24 hours', '2026-01-01Z')")
    assert send_reminders(engine, rules).queued == 1
    deliver(engine, OLD)

    assert prune_outbox(engine, RULES) == 1
    assert send_reminders(engine, rules).queued == 0
    assert column(engine, "SELECT reservation_id FROM reminder") == [bought]
    assert column(engine, "SELECT id FROM outbox_event") == []


def test_firings_go_by_when_they_happened(engine: Engine) -> None:
    for at in (OLD, OLD, OLD, RECENT):
        execute(
            engine,
            f"""
            INSERT INTO job_firing (job, scheduled_for, fired_at, host, pid, run_id, outcome)
            VALUES ('any', now(), {at}, 'here', 1, 'run', 'ACCEPTED')
            """,
        )
    assert prune_firings(engine, RULES) == 3
    assert column(engine, f"SELECT fired_at >= {RECENT} - interval '1 hour' FROM job_firing") == [True]


def test_claims_of_minute_jobs_go_but_for_those_that_somebody_holds(engine: Engine) -> None:
    add_claim(engine, "expire_reservations", OLD)
    add_claim(engine, "expire_reservations", RECENT)
    add_claim(engine, "expire_reservations", "now() - interval '92 days'", "FAILED")
    add_claim(engine, "expire_reservations", "now() - interval '93 days'", "PROCESSING")
    add_claim(engine, "close_events", OLD)

    assert prune_claims(engine, RULES) == 2
    assert sorted(column(engine, "SELECT job || ' ' || state FROM job_execution")) == [
        "close_events COMPLETED",
        "expire_reservations COMPLETED",
        "expire_reservations PROCESSING",
    ]


def test_claims_of_runs_that_were_launched_by_hand_go_by_when_they_ended(engine: Engine) -> None:
    for key, at in (("old", OLD), ("recent", RECENT)):
        execute(
            engine,
            f"""
            INSERT INTO job_execution (job, idempotency_key, state, owner, finished_at)
            VALUES ('expire_reservations', 'by hand {key}', 'COMPLETED', 'nobody', {at})
            """,
        )
    assert prune_claims(engine, RULES) == 1
    assert column(engine, "SELECT idempotency_key FROM job_execution") == ["by hand recent"]


@pytest.mark.every_server
def test_reminders_of_dates_that_are_long_past_go_unless_their_event_is_still_there(engine: Engine) -> None:
    bought = [add_reservation(engine, add_event(engine, add_organization(engine))) for _ in range(4)]
    add_outbox_event(engine, "undelivered", "DEAD", OLD)
    [undelivered] = column(engine, "SELECT event_id FROM outbox_event")
    for reservation, ago, event_id in zip(bought, (92, 92, 88, 92), (None, None, None, undelivered), strict=True):
        execute(
            engine,
            """
            INSERT INTO reminder (reservation_id, kind, event_date, state, outbox_event_id)
            VALUES (:reservation, '24h', CAST(now() AS date) - CAST(:ago AS integer),
                CASE WHEN CAST(:event_id AS uuid) IS NULL THEN 'SKIPPED' ELSE 'QUEUED' END, CAST(:event_id AS uuid))
            """,
            reservation=reservation,
            ago=ago,
            event_id=event_id,
        )
    assert prune_reminders(engine, RULES) == 2
    assert sorted(column(engine, "SELECT reservation_id FROM reminder")) == sorted(bought[2:])
    assert prune_reminders(engine, RULES) == 0


def test_a_table_of_reminders_is_walked_page_by_page(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ticketflow_orch.monitoring.retention._PAGES_AT_ONCE", 1)
    reservation = add_reservation(engine, add_event(engine, add_organization(engine)))
    execute(
        engine,
        """
        INSERT INTO reminder (reservation_id, kind, event_date, state)
        SELECT :reservation, 'k' || number, CAST(now() AS date) - 100, 'SKIPPED' FROM generate_series(1, 1000) AS number
        """,
        reservation=reservation,
    )
    assert prune_reminders(engine, RULES) == 1000


def test_what_was_alerted_long_ago_is_forgotten_unless_nobody_was_told_yet(engine: Engine) -> None:
    for key, at in (("old", OLD), ("recent", RECENT), ("untold", OLD)):
        execute(engine, f"INSERT INTO alert VALUES ('StaleClaim', '{key}', {at})")
    add_outbox_event(engine, "StaleClaim untold", "DEAD", OLD)
    assert prune_alerts(engine, RULES) == 1
    assert sorted(column(engine, "SELECT key FROM alert")) == ["recent", "untold"]


def test_what_was_alerted_of_what_stands_is_remembered_and_goes_with_its_group_afterwards(engine: Engine) -> None:
    for subject, resolved in (("stands", "NULL"), ("recent", RECENT), ("over", OLD)):
        execute(
            engine,
            f"""
            WITH opened AS (
                INSERT INTO alert_group (kind, subject, severity, key, payload, first_at, last_at, told_at, resolved_at,
                    resolved_by)
                VALUES ('StaleClaim', :subject, 'INFO', :subject, '{{}}', {OLD}, {OLD}, {OLD}, {resolved},
                    CASE WHEN {resolved} IS NOT NULL THEN 'me' END)
                RETURNING id
            )
            INSERT INTO alert (kind, key, alerted_at, group_id) SELECT 'StaleClaim', :subject, {OLD}, id FROM opened
            """,
            subject=subject,
        )
    assert prune_alerts(engine, RULES) == 1
    assert sorted(column(engine, "SELECT key FROM alert")) == ["recent", "stands"]
    assert sorted(column(engine, "SELECT subject FROM alert_group")) == ["recent", "stands"]


def test_nobody_makes_anyone_be_told_twice_by_deleting_what_is_recent(engine: Engine) -> None:
    assert "reminders of the last 39 days stay" in refusal(engine, "SELECT reminder_prune(now(), 0, 10)")
    assert "alerted in the last 39 days is remembered" in refusal(engine, "SELECT alert_prune(now(), 10)")


def test_records_are_kept_for_longer_than_a_monthly_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TICKETFLOW_RECORDS_KEPT", "P39D")
    with pytest.raises(
        TicketflowError, match="TICKETFLOW_RECORDS_KEPT='P39D' is refused: keep records for P40D or longer"
    ):
        read_settings()
    monkeypatch.setenv("TICKETFLOW_RECORDS_KEPT", "P40D")
    assert read_settings().records_kept == timedelta(days=40)


@pytest.mark.every_server
def test_nothing_but_what_is_over_and_done_with_leaves_the_outbox(engine: Engine) -> None:
    for state in ("PENDING", "INFLIGHT", "DEAD", "IN_DOUBT", "HELD", "DELIVERED"):
        add_outbox_event(engine, state, state, OLD)
    for recent in ("clock_timestamp()", "now() - interval '38 days'", "CAST('infinity' AS timestamptz)"):
        assert "stays in the outbox" in refusal(engine, f"SELECT outbox_prune({recent}, 10)")
    assert column(engine, "SELECT outbox_prune(NULL, 10)") == [0]
    assert column(engine, "SELECT outbox_prune(now() - interval '40 days', 10)") == [1]
