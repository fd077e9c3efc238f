"""Which of Dagster's daemons work on this instance: each leaves a mark of its own with its heartbeats.

Dagster keeps one heartbeat for all daemons, so that the last one to write hides the others. Two of them start every
window twice. The marks lie in Dagster's own storage, among its keys and values.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import combinations

from sqlalchemy import Connection, text

from ticketflow_orch.local.process_identity import Life, ProcessIdentity

# Seconds; a daemon's heartbeats come every 30.
BETWEEN_MARKS = 30.0
LONGEST_SILENCE = 75.0
_PREFIX = "ticketflow/daemon/"
_FORGOTTEN_AFTER = 24 * 3600


@dataclass(frozen=True, slots=True)
class DaemonMark:
    """A daemon's mark. `first` and `last`: when it left it, by the database's clock, in seconds since the epoch.

    `age`: how many seconds ago the last was.
    """

    id: str
    process: ProcessIdentity
    first: float
    last: float
    age: float


def leave_mark(connection: Connection, daemon_id: str, process: ProcessIdentity) -> None:
    """Say that the daemon `daemon_id`, which is `process`, works now; forget those that have not for a day."""
    connection.execute(
        text("""
            INSERT INTO kvs (key, value)
            VALUES (
                :key,
                json_build_object(
                    'process', CAST(:process AS text),
                    'first', extract(epoch FROM statement_timestamp()),
                    'last', extract(epoch FROM statement_timestamp())
                )::text
            )
            ON CONFLICT (key) DO UPDATE SET value = jsonb_set(
                kvs.value::jsonb, '{last}', to_jsonb(extract(epoch FROM statement_timestamp()))
            )::text
        """),
        {"key": f"{_PREFIX}{daemon_id}", "process": process.to_json()},
    )
    connection.execute(
        text("""
            DELETE FROM kvs
            WHERE CASE WHEN starts_with(key, :prefix) THEN (value::jsonb ->> 'last')::float8 END
                < extract(epoch FROM statement_timestamp()) - :seconds
        """),
        {"prefix": _PREFIX, "seconds": _FORGOTTEN_AFTER},
    )


def working_daemons(connection: Connection, within: float = LONGEST_SILENCE) -> list[DaemonMark]:
    """The daemons that left a mark in the last `within` seconds and are not known to have ended, the newest first."""
    rows = connection.execute(
        text("""
            SELECT key, value, extract(epoch FROM statement_timestamp())::float8 AS now
            FROM kvs WHERE starts_with(key, :prefix)
        """),
        {"prefix": _PREFIX},
    )
    marks = []
    for row in rows:
        mark = json.loads(row.value)
        process = ProcessIdentity.parse(mark["process"])
        first, last = float(mark["first"]), float(mark["last"])
        if process is not None and row.now - last <= within and process.life != Life.GONE:
            marks.append(DaemonMark(row.key.removeprefix(_PREFIX), process, first, last, row.now - last))
    return sorted(marks, key=lambda mark: -mark.first)


def at_once(marks: list[DaemonMark]) -> list[DaemonMark]:
    """Those of `marks` that worked at the same time as another: not one that had ended before the next began."""
    together = {
        mark.id: mark
        for one, other in combinations(marks, 2)
        if one.last > other.first and other.last > one.first
        for mark in (one, other)
    }
    return list(together.values())


def two_daemons(marks: list[DaemonMark]) -> str | None:
    """A sentence about the daemons that work at once; None where it is one at most."""
    together = at_once(marks)
    if not together:
        return None
    named = ", ".join(sorted(str(mark.process) for mark in together))
    return f"{len(together)} work at once and start every window twice ({named})"
