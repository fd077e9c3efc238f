"""No daemon over some windows, then one again: what was due is done, and each window that was missed is told once."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from schedules import ALWAYS_REQUESTING
from sensors.missed_windows import PATIENCE, Look, ticks
from tests.end_to_end.back_office import BackOffice, opened
from tests.rows import add_event, add_organization, add_reservation, instant
from ticketflow_orch.database import connect_engine
from ticketflow_orch.embedded import EmbeddedServer

DOWN = timedelta(days=2)
# A gap of two intervals between looks postpones judging: not so often that a busy machine would do so for ever.
OFTEN = {"TICKETFLOW_WATCH_INTERVAL": "PT10S"}

# More than the patience of all that is waited for.
pytestmark = pytest.mark.timeout(900)


def test_after_two_days_without_a_daemon_all_is_caught_up_and_each_missed_window_is_told_once(scratch: Path) -> None:
    home = scratch / "down"
    with opened(home, **OFTEN) as office:
        office.wait_for(lambda: last_look(office), "the first look")
        since = datetime.now(UTC) - DOWN
        office.wait_for(lambda: looked_last(office, since), "a last look of two days ago")
    reserve_meanwhile(home)
    with opened(home, **OFTEN) as office:
        first = office.wait_for(lambda: judged_after(office, since), "the first judgement")
        office.wait_for(lambda: expired(office.engine) == 2, "the end of the reservations")
        judged = office.wait_for(lambda: judged_after(office, first), "one more judgement")
        told = Counter(missed(office.engine))
        latest = datetime.now(UTC) - PATIENCE
    # A judgement under way may have told windows that the sensor does not remember as judged yet.
    assert windows(since, judged) <= told <= windows(since, latest)
    assert {job for job, _ in told} == {"close_events", "housekeeping"}


def windows(after: datetime, until: datetime) -> Counter[tuple[str, datetime]]:
    """All daily windows in between, two of each job as a rule: at some hours and when clocks change it is another."""
    return Counter(
        (schedule.job_name.removesuffix("_job"), tick)
        for schedule in ALWAYS_REQUESTING
        for tick in ticks(schedule, after, until)
    )


def judged_after(office: BackOffice, at: datetime) -> datetime | None:
    """Until when windows are judged and those that were missed told, once that is later than `at`."""
    judged = Look.parse(last_look(office)).judged_until
    return judged if judged > at else None


def looked_last(office: BackOffice, at: datetime) -> bool:
    """Whether the sensor remembers a last look at the instant `at`; a look under way may have written over it."""
    answer = office.ask(SET_CURSOR, sensor=SENSOR, cursor=Look(at, at).cursor)["setSensorCursor"]
    assert answer["__typename"] == "Sensor", answer
    return Look.parse(last_look(office)).judged_until == at


def last_look(office: BackOffice) -> str:
    """What the sensor remembers; empty before its first look."""
    state = office.ask(CURSOR, sensor=SENSOR)["sensorOrError"]["sensorState"]
    return str((state["typeSpecificData"] or {}).get("lastCursor") or "")


def reserve_meanwhile(home: Path) -> None:
    """The application goes on selling while no daemon runs: two reservations come to the end of their time."""
    server = EmbeddedServer(home)
    server.start()
    engine = connect_engine(server.url("ticketflow"), "the application")
    far = {"starts_at": instant("2199-01-01T18:00"), "ends_at": instant("2199-01-01T20:00")}
    event = add_event(engine, add_organization(engine), **far)
    for _ in range(2):
        add_reservation(engine, event)
    engine.dispose()
    server.stop()


def missed(engine: Engine) -> list[tuple[str, datetime]]:
    """Job and time of each window that was told, as often as it was."""
    with engine.connect() as connection:
        told = connection.execute(
            text("""
                SELECT payload ->> 'job', payload ->> 'scheduled_for' FROM outbox_event
                WHERE event_type = 'WindowMissed'
            """)
        )
        return [(job, instant(window)) for job, window in told]


def expired(engine: Engine) -> int:
    """How many reservations have expired and were told."""
    with engine.connect() as connection:
        return connection.execute(
            text("""
                SELECT count(*) FROM reservation JOIN outbox_event ON aggregate_id = public_ref
                WHERE status = 'EXPIRED' AND event_type = 'ReservationExpired'
            """)
        ).scalar_one()


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
