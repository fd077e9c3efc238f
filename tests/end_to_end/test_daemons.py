"""Two daemons on one instance, where every window may be started twice, and one that was away for days."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from schedules import ALWAYS_REQUESTING
from sensors.missed_windows import Look, ticks
from tests.end_to_end.back_office import BIN, FINISHED, BackOffice, Run, opened
from tests.support.rows import add_event, add_organization, add_reservation, instant
from ticketflow_orch.jobs.firings import SCHEDULED_FOR
from ticketflow_orch.jobs.intervals import LATEST_REQUEST
from ticketflow_orch.months import zone

# `make chaos` lets them run for longer.
MINUTES = int(os.environ.get("DAEMON_MINUTES", "1"))
JOB = "expire_reservations"
AWAY = timedelta(days=2)
MADRID = zone("Europe/Madrid")

# More than the patience of all that is waited for.
pytestmark = pytest.mark.timeout(900 + 60 * MINUTES)


@pytest.fixture(scope="module")
def office(scratch: Path) -> Iterator[BackOffice]:
    # A gap of two intervals between looks postpones judging: not so often that a busy machine would do so for ever.
    with opened(scratch / "daemons", TICKETFLOW_WATCH_INTERVAL="PT10S") as office:
        far = {"starts_at": instant("2199-01-01T18:00"), "ends_at": instant("2199-01-01T20:00")}
        event = add_event(office.engine, add_organization(office.engine), **far)
        with office.engine.begin() as connection:
            connection.execute(text(EXPIRING), {"event": event, "seconds": 60 * (MINUTES + 5)})
        yield office


@contextmanager
def second_daemon(office: BackOffice) -> Iterator[None]:
    said = subprocess.run(
        [BIN / "ticketflow", "env", "--json"], env=office.environment, capture_output=True, check=True, timeout=60
    )
    with (office.home / "logs" / "second-daemon.log").open("wb") as log:
        daemon = subprocess.Popen(
            [sys.executable, "-m", "dagster._daemon", "run", "--workspace", str(office.home / "ui-workspace.yaml")],
            env={**office.environment, **json.loads(said.stdout)},
            cwd=office.home,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            yield
        finally:
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(30)
            except subprocess.TimeoutExpired:
                daemon.kill()


def test_what_two_daemons_start_twice_happens_once_and_each_such_window_is_noted_once(office: BackOffice) -> None:
    with second_daemon(office):
        office.wait_for(lambda: len(windows(office)) >= MINUTES + 1, "the windows of some minutes", 60 * MINUTES + 180)
    runs = office.wait_for(lambda: ended(scheduled(office)), "the end of all runs")
    assert [office.said(run.id) for run in runs if run.status != "SUCCESS"] == []
    expired, announced = counts(office.engine)
    assert expired == announced > 0
    twice = {window for window, times in windows(office).items() if times > 1}
    office.wait_for(lambda: alerted(office.engine) >= twice, "the alerts", 120)
    assert alerted(office.engine) == twice


def test_a_failed_run_executed_again_from_its_page_does_the_work_and_is_no_duplicate(office: BackOffice) -> None:
    window = "2026-01-02T03:30:00+00:00"
    with office.engine.begin() as connection:
        connection.execute(text(REFUSE_CLAIMS))
    failed = office.wait_for_run(office.launch("close_events_job", {SCHEDULED_FOR: window}))
    assert failed.status == "FAILURE"
    with office.engine.begin() as connection:
        connection.execute(text("DROP TRIGGER refuse_close_events ON job_execution"))
    again = office.wait_for_run(office.execute_again(failed.id))
    assert again.status == "SUCCESS"
    with office.engine.connect() as connection:
        outcomes = connection.execute(
            text("SELECT outcome FROM job_firing WHERE job = 'close_events' AND scheduled_for = :window ORDER BY id"),
            {"window": instant(window)},
        ).scalars()
        assert list(outcomes) == ["ACCEPTED", "RETRY"]
        done = connection.execute(
            text("SELECT state, attempt FROM job_execution WHERE idempotency_key = :key"), {"key": window}
        ).one()
        assert tuple(done) == ("COMPLETED", 1)


def test_a_daemon_that_was_away_for_two_days_catches_up_and_each_missed_window_is_alerted_once(
    office: BackOffice,
) -> None:
    office.wait_for(lambda: last_look(office), "the first look")
    since = datetime.now(UTC) - AWAY
    [daemon] = [child for child in office.process.children() if "dagster._daemon" in child.cmdline()]
    office.wait_for(lambda: looked_last(office, since), "a last look of two days ago")
    daemon.suspend()
    try:
        held = reserve(office.engine)
    finally:
        daemon.resume()
    first = office.wait_for(lambda: judged_after(office, since), "the first judgement")
    office.wait_for(lambda: expired(office.engine, held) == len(held), "the end of the reservations")
    judged = office.wait_for(lambda: judged_after(office, first), "one more judgement")
    alerts = Counter(missed(office.engine))
    latest = datetime.now(UTC) - LATEST_REQUEST
    # A judgement at work may have alerted windows that the sensor does not remember as judged yet.
    assert daily_windows(since, judged) <= alerts <= daily_windows(since, latest)
    assert {job for job, _ in alerts} == {"close_events", "housekeeping"}


def daily_windows(after: datetime, until: datetime) -> Counter[tuple[str, datetime]]:
    """All daily windows in between, two of each job as a rule: at some hours and when clocks change it is another."""
    return Counter(
        (schedule.job_name.removesuffix("_job"), tick)
        for schedule in ALWAYS_REQUESTING
        for tick in ticks(schedule, after, until)
    )


def scheduled(office: BackOffice) -> list[Run]:
    return office.runs(dagster_schedule_name=f"{JOB}_schedule")


def ended(runs: list[Run]) -> list[Run] | None:
    """`runs`, if all of them have ended. Asked for again there may be one more, born this minute."""
    return runs if all(run.status in FINISHED for run in runs) else None


def windows(office: BackOffice) -> Counter[str]:
    """How many runs each window of the minute job has that are no retries."""
    runs = [run for run in scheduled(office) if "dagster/parent_run_id" not in run.tags]
    return Counter(run.tags[SCHEDULED_FOR] for run in runs)


def counts(engine: Engine) -> tuple[int, int]:
    """How many reservations have expired, and how many events say so, at one instant: they go on expiring."""
    with engine.connect() as connection:
        expired, announced = connection.execute(text(COUNTS)).one()
        return expired, announced


def alerted(engine: Engine) -> set[str]:
    """The windows of the minute job that were noted as duplicates, as their tags have them."""
    with engine.connect() as connection:
        keys = connection.execute(text(ALERTED), {"job": JOB}).scalars()
        return {instant(key).astimezone(MADRID).isoformat(timespec="seconds") for key in keys}


def judged_after(office: BackOffice, at: datetime) -> datetime | None:
    """Until when windows are judged and those that were missed alerted, once that is later than `at`."""
    judged = Look.parse(last_look(office)).judged_until
    return judged if judged > at else None


def looked_last(office: BackOffice, at: datetime) -> bool:
    """Whether the sensor remembers a last look at the instant `at`; a look in progress may have written over it."""
    answer = office.ask(SET_CURSOR, sensor=SENSOR, cursor=Look(at, at).cursor)["setSensorCursor"]
    assert answer["__typename"] == "Sensor", answer
    return Look.parse(last_look(office)).judged_until == at


def last_look(office: BackOffice) -> str:
    """What the sensor remembers; empty before its first look."""
    state = office.ask(CURSOR, sensor=SENSOR)["sensorOrError"]["sensorState"]
    return str((state["typeSpecificData"] or {}).get("lastCursor") or "")


def missed(engine: Engine) -> list[tuple[str, datetime]]:
    """Job and time of each window that was noted as missed."""
    with engine.connect() as connection:
        noted = connection.execute(text(MISSED))
        return [(job, instant(window)) for job, window in noted]


def reserve(engine: Engine) -> list[str]:
    """The application goes on selling while no daemon runs: two reservations come to the end of their time."""
    far = {"starts_at": instant("2199-01-01T18:00"), "ends_at": instant("2199-01-01T20:00")}
    event = add_event(engine, add_organization(engine), **far)
    held = [f"held-meanwhile-{number}" for number in range(2)]
    for reference in held:
        add_reservation(engine, event, public_ref=reference)
    return held


def expired(engine: Engine, references: list[str]) -> int:
    """How many of the reservations have expired and were announced."""
    with engine.connect() as connection:
        return connection.execute(text(EXPIRED), {"references": references}).scalar_one()


EXPIRING = """
    INSERT INTO reservation (public_ref, event_id, buyer_email, quantity, status, created_at, expires_at)
    SELECT 'expiring-' || second, :event, 'buyer@example.com', 1, 'ACTIVE', now(), now() + second * interval '1 second'
    FROM generate_series(1, CAST(:seconds AS integer)) AS second
"""

COUNTS = """
    SELECT
        (SELECT count(*) FROM reservation WHERE status = 'EXPIRED'),
        (SELECT count(*) FROM outbox_event WHERE event_type = 'ReservationExpired')
"""

ALERTED = """
    SELECT split_part(key, ' ', 2) FROM alert WHERE kind = 'DuplicateFiring' AND split_part(key, ' ', 1) = :job
"""

MISSED = """
    SELECT split_part(key, ' ', 1), split_part(key, ' ', 2) FROM alert WHERE kind = 'WindowMissed'
"""

REFUSE_CLAIMS = """
    CREATE FUNCTION refuse_close_events() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'no claims today'; END $$;
    CREATE TRIGGER refuse_close_events BEFORE INSERT ON job_execution FOR EACH ROW
        WHEN (NEW.job = 'close_events') EXECUTE FUNCTION refuse_close_events();
"""

EXPIRED = """
    SELECT count(*) FROM reservation JOIN outbox_event ON aggregate_id = public_ref
    WHERE status = 'EXPIRED' AND event_type = 'ReservationExpired' AND public_ref = ANY (:references)
"""

SENSOR = {
    "repositoryName": "__repository__",
    "repositoryLocationName": "ticketflow",
    "sensorName": "missed_windows",
}

SET_CURSOR = """
mutation ($sensor: SensorSelector!, $cursor: String) {
  setSensorCursor(sensorSelector: $sensor, cursor: $cursor) { __typename ... on PythonError { message } }
}
"""

CURSOR = """
query ($sensor: SensorSelector!) {
  sensorOrError(sensorSelector: $sensor) {
    ... on Sensor { sensorState { typeSpecificData { ... on SensorData { lastCursor } } } }
  }
}
"""
