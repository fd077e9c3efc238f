"""No daemon over some windows, then one again: what was due is done, and each window that was missed is told once."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import Engine, text

from sensors.missed_windows import Look
from tests.end_to_end.back_office import BackOffice, opened
from tests.rows import add_event, add_organization, add_reservation, instant
from ticketflow_orch.database import connect_engine
from ticketflow_orch.embedded import EmbeddedServer

DOWN = timedelta(days=2)
OFTEN = {"TICKETFLOW_WATCH_INTERVAL": "PT5S"}


def test_after_two_days_without_a_daemon_all_is_caught_up_and_each_missed_window_is_told_once(scratch: Path) -> None:
    home = scratch / "down"
    with opened(home, **OFTEN) as office:
        office.wait_for(lambda: last_look(office), "the first look")
        since = datetime.now(UTC) - DOWN
        office.wait_for(lambda: looked_last(office, since), "a last look of two days ago")
    reserve_meanwhile(home)
    with opened(home, **OFTEN) as office:
        office.wait_for(lambda: len(missed(office.engine)) >= 4, "the alerts")
        office.wait_for(lambda: expired(office.engine) == 2, "the end of the reservations")
        seen = last_look(office)
        office.wait_for(lambda: last_look(office) != seen, "one more look")
        jobs = Counter(window.split(" ")[1] for window in missed(office.engine))
    assert jobs == {"close_events": 2, "housekeeping": 2}


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


def missed(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        keys = connection.execute(text("SELECT aggregate_id FROM outbox_event WHERE event_type = 'WindowMissed'"))
        return list(keys.scalars())


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
