"""Sensors that are evaluated in this process, on a database and at the instants that the test gives."""

from __future__ import annotations

from datetime import datetime, timedelta

import dagster as dg
from sqlalchemy.engine import URL

from resources import ClockResource, DatabaseResource, OutboxResource
from sensors import SENSORS

FIVE_MINUTES = timedelta(minutes=5)


class Watch:
    """The sensors on one database, each with its cursor, at the instants that the test gives."""

    def __init__(self, url: URL, instance: dg.DagsterInstance) -> None:
        self._url = url.render_as_string(hide_password=False)
        self._instance = instance
        self._cursors: dict[str, str | None] = {}

    def look(self, name: str, at: datetime) -> str:
        """Evaluate the sensor once; what it says."""
        sensor = next(one for one in SENSORS if one.name == name)
        with dg.build_sensor_context(
            instance=self._instance,
            cursor=self._cursors.get(name),
            resources={
                "database": DatabaseResource(url=self._url),
                "clock": ClockResource(fixed_at=at.isoformat()),
                "outbox": OutboxResource(),
            },
        ) as context:
            data = sensor.evaluate_tick(context)
        self._cursors[name] = data.cursor
        assert not data.run_requests
        return data.skip_message or ""

    def seen_until(self, name: str, at: datetime) -> None:
        """Let the sensor have looked last at that instant."""
        self._cursors[name] = at.isoformat()

    def look_on(self, begin: datetime, end: datetime) -> None:
        """Look for missed windows every five minutes."""
        at = begin
        while at <= end:
            self.look("missed_windows", at)
            at += FIVE_MINUTES
