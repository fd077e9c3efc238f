"""An operation that is killed, repeated or raced ends as one that nobody disturbed: every effect once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.engine import URL

from tests.chaos.op_workers import NOW, OpWorker
from tests.chaos.places import Place
from tests.conftest import fresh_database
from tests.support.rows import add_organization
from ticketflow_orch.jobs.firings import duplicate_windows
from ticketflow_orch.local.postgres import EmbeddedServer

EVENTS = 40
PER_EVENT = 3
EXPIRED, CLOSED, REMINDED = "ReservationExpired", "EventClosed", "ReminderDue"
# What each job leaves in the outbox. Closing expires what was held for the events it closes.
EFFECTS = {
    "close_events": {CLOSED: EVENTS, EXPIRED: EVENTS * PER_EVENT},
    "expire_reservations": {EXPIRED: EVENTS * PER_EVENT * 2},
    "send_reminders": {REMINDED: EVENTS * PER_EVENT},
}
TAKE = {
    "close_events": "FOR UPDATE OF event SKIP LOCKED",
    "expire_reservations": "FOR UPDATE OF reservation SKIP LOCKED",
    "send_reminders": "SELECT coming.starts_at",
}
APPLY = {
    "close_events": "UPDATE event SET status = 'CLOSED'",
    "expire_reservations": "SET status = 'EXPIRED'",
    "send_reminders": "INSERT INTO reminder (",
}
FINISH = "UPDATE job_execution SET state = "
JOBS = list(EFFECTS)


@pytest.fixture
def url(server: EmbeddedServer) -> Iterator[URL]:
    """The URL of a fresh, migrated database."""
    with fresh_database(server) as url:
        yield url


@pytest.fixture
def start(url: URL) -> Iterator[Callable[..., OpWorker]]:
    """Starts workers; whatever is left of them in the end is killed."""
    started: list[OpWorker] = []

    def start(job: str, run_id: str, **options: Any) -> OpWorker:
        started.append(OpWorker(url, job, run_id, **options))
        return started[-1]

    yield start
    for worker in started:
        worker.kill()


@pytest.fixture(autouse=True)
def season(engine: Engine) -> None:
    """Events that are over and events of the next day, with reservations that nobody pays, and sold ones."""
    with engine.begin() as connection:
        values = {"organization": add_organization(engine), "now": NOW, "events": EVENTS, "each": PER_EVENT}
        for statement in (EVENTS_OVER_AND_COMING, RESERVATIONS, KIND):
            connection.execute(text(statement), values)


def effects(engine: Engine) -> dict[str, int]:
    """How many events of each type the outbox holds; each has a cause of its own."""
    with engine.connect() as connection:
        rows = connection.execute(
            text("SELECT event_type, count(*), count(DISTINCT aggregate_id) FROM outbox_event GROUP BY 1")
        ).all()
    assert all(count == causes for _, count, causes in rows)
    return {kind: count for kind, count, _ in rows}


def count(engine: Engine, question: str, **values: Any) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text(f"SELECT count(*) FROM {question}"), values).scalar_one())


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize(
    "place",
    [
        lambda job: Place("before", TAKE[job], 3),
        lambda job: Place("after", APPLY[job], 2),
        lambda job: Place("after commit", APPLY[job], 2),
        lambda job: Place("before", FINISH),
    ],
    ids=["between chunks", "in a chunk", "after a chunk", "before its claim is finished"],
)
def test_a_run_that_is_killed_is_made_good_by_its_retry(
    engine: Engine, start: Callable[..., OpWorker], job: str, place: Callable[[str], Place]
) -> None:
    assert start(job, "run-1", place=place(job)).run().code == -signal.SIGKILL
    retry = start(job, "run-2", parent="run-1").run()
    assert (retry.status, retry.outcome) == ("DONE", "RETRY"), retry.complaint
    assert effects(engine) == EFFECTS[job]
    again = start(job, "run-3").run()
    assert (again.status, again.result) == ("REPEATED", retry.result)
    assert effects(engine) == EFFECTS[job]


@pytest.mark.parametrize(("job", "runs"), [("close_events", 2), ("expire_reservations", 8), ("send_reminders", 2)])
def test_runs_of_one_window_released_at_once_have_its_effect_once(
    engine: Engine, start: Callable[..., OpWorker], job: str, runs: int
) -> None:
    workers = [start(job, f"run-{number}") for number in range(runs)]
    for worker in workers:
        worker.wait_until_ready()
    for worker in workers:
        worker.go()
    ends = [worker.ended() for worker in workers]
    assert [end.complaint for end in ends if end.code] == []
    assert [end.status for end in ends].count("DONE") == 1
    assert sorted(end.outcome or "" for end in ends) == ["ACCEPTED"] + ["DUPLICATE"] * (runs - 1)
    assert effects(engine) == EFFECTS[job]
    with engine.connect() as connection:
        assert [(window.job, len(window.runs)) for window in duplicate_windows(connection)] == [(job, runs)]


@pytest.mark.parametrize("job", JOBS)
def test_runs_of_different_windows_at_once_share_the_work_and_repeat_none(
    engine: Engine, start: Callable[..., OpWorker], job: str
) -> None:
    # Claims keep the runs of one window apart; here nothing does but the rows themselves.
    workers = [start(job, f"run-{number}", window=number, chunk_size=3) for number in range(4)]
    for worker in workers:
        worker.wait_until_ready()
    for worker in workers:
        worker.go()
    assert [worker.ended().status for worker in workers] == ["DONE"] * 4
    assert effects(engine) == EFFECTS[job]


def test_twenty_thousand_reservations_killed_after_a_third_are_made_good_to_the_last(
    engine: Engine, start: Callable[..., OpWorker]
) -> None:
    with engine.begin() as connection:
        connection.execute(text(MORE), {"now": NOW})
    due = count(engine, "reservation WHERE status = 'ACTIVE' AND expires_at <= :now", now=NOW)
    assert due == 20_000 + EVENTS * PER_EVENT * 2
    place = Place("before", TAKE["expire_reservations"], due // 3 // 1000 + 1)
    killed = start("expire_reservations", "run-1", place=place, chunk_size=1000).run()
    assert killed.code == -signal.SIGKILL
    assert count(engine, "reservation WHERE expired_by = 'run-1'") == 6000
    retry = start("expire_reservations", "run-2", parent="run-1", chunk_size=1000).run()
    assert retry.result["reservations"] == due - 6000
    assert count(engine, "reservation WHERE expired_by = 'run-2'") == due - 6000
    assert effects(engine) == {EXPIRED: due}


EVENTS_OVER_AND_COMING = """
    INSERT INTO event (external_ref, organization_id, title, status, starts_at, ends_at, timezone)
    SELECT CASE WHEN over THEN 'over-' ELSE 'coming-' END || number, :organization, 'x', 'OPEN',
        CAST(:now AS timestamptz) + make_interval(hours => CASE WHEN over THEN -5 ELSE 20 END, mins => number),
        CAST(:now AS timestamptz) + make_interval(hours => CASE WHEN over THEN -3 ELSE 22 END, mins => number),
        (ARRAY['Europe/Madrid', 'Pacific/Kiritimati', 'Pacific/Pago_Pago'])[number % 3 + 1]
    FROM generate_series(1, CAST(:events AS integer)) AS number, (VALUES (true), (false)) AS half (over)
"""

RESERVATIONS = """
    INSERT INTO reservation
        (public_ref, event_id, buyer_email, quantity, status, created_at, expires_at, confirmed_at)
    SELECT s.status || '-' || external_ref || '-' || number, event.id, 'buyer@example.com', 1, s.status,
        CAST(:now AS timestamptz) - interval '9 days', CAST(:now AS timestamptz) - number * interval '1 second',
        CASE WHEN s.status = 'CONFIRMED' THEN CAST(:now AS timestamptz) - interval '9 days' END
    FROM event, generate_series(1, CAST(:each AS integer)) AS number, (VALUES ('ACTIVE'), ('CONFIRMED')) AS s (status)
"""

KIND = "INSERT INTO reminder_kind (kind, lead, enabled_at) VALUES ('24h', interval '24 hours', '2026-01-01Z')"

MORE = """
    INSERT INTO reservation (public_ref, event_id, buyer_email, quantity, status, created_at, expires_at)
    SELECT 'more-' || number, (SELECT min(id) FROM event WHERE external_ref LIKE 'coming-%'), 'buyer@example.com', 1,
        'ACTIVE', CAST(:now AS timestamptz) - interval '9 days', CAST(:now AS timestamptz) - interval '1 minute'
    FROM generate_series(1, 20000) AS number
"""
