"""How long work took and how fast events were delivered in the last day: distributions that a database counts.

They are shown by `metrics`, and asked with all other figures by `snapshot`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, groupby
from typing import Any

from sqlalchemy import Connection, Row

from ticketflow_orch.db.sql_files import sql

# In seconds. Minute jobs take less than one, the settlement of millions minutes.
RUN_TIMES = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0)
# A resident relay takes tenths of a second, a retried delivery hours.
LATENCIES = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 3600.0, 86400.0)
# Over which a rate is taken, in seconds.
RATE_OVER = 300


@dataclass(frozen=True, slots=True)
class Distribution:
    """How many of what `label` names took up to so many seconds, for each of the edges and without any; their sum."""

    label: str
    edges: Sequence[float]
    cumulative: tuple[int, ...]
    seconds: float

    @property
    def buckets(self) -> list[tuple[str, float]]:
        """The counts as Prometheus has them: each edge, and how many took no longer."""
        return [(str(edge), count) for edge, count in zip((*self.edges, "+Inf"), self.cumulative, strict=True)]


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a destination of the outbox saw: events `delivered` and `attempts` in the last day, and by the second.

    `attempts` are those of events that ended in the last day, or wait still. `rate` is that of the last five minutes.
    """

    destination: str
    delivered: int
    attempts: int
    rate: float


def run_times(connection: Connection, since: datetime, from_key: str, to_key: str) -> tuple[Distribution, ...]:
    """How long completed windows between both keys took that ended since then, by job."""
    values = {"since": since, "from_key": from_key, "to_key": to_key, "edges": list(RUN_TIMES)}
    return _distributions(connection.exec_driver_sql(_RUN_TIMES, values), RUN_TIMES)


def latencies(connection: Connection, since: datetime, most: int) -> tuple[Distribution, ...]:
    """How long events that were delivered since then waited from their cause, by destination; the last `most`."""
    values = {"since": since, "most": most, "edges": list(LATENCIES)}
    return _distributions(connection.exec_driver_sql(_LATENCIES, values), LATENCIES)


def traffic(connection: Connection, since: datetime, most: int) -> tuple[Traffic, ...]:
    """What each destination saw since then; of what ended and of what waits `most` are looked at."""
    rows = connection.exec_driver_sql(_TRAFFIC, {"since": since, "most": most, "over": RATE_OVER})
    return tuple(Traffic(row.destination, row.delivered, row.attempts, row.recent / RATE_OVER) for row in rows)


def _distributions(rows: Iterable[Row[Any]], edges: Sequence[float]) -> tuple[Distribution, ...]:
    found = []
    for label, of_label in groupby(rows, key=lambda row: row.label):
        counts = [0] * (len(edges) + 1)
        seconds = 0.0
        for row in of_label:
            counts[row.bucket] = row.number
            seconds += row.seconds
        found.append(Distribution(label, edges, tuple(accumulate(counts)), seconds))
    return tuple(found)


# What follows WITH: `known`, the jobs that have claims.
JOBS = sql(__file__, "jobs")

_RUN_TIMES = sql(__file__, "run_times", jobs=JOBS)

_LATENCIES = sql(__file__, "latencies")

_TRAFFIC = sql(__file__, "traffic")
