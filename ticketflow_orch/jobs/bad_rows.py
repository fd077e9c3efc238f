"""The rows that jobs leave out: remembered from a break to its end, alerted once each, named to those who watch.

A break begins when a row's own data, or somebody's trigger, makes a job fail on it, and ends when the row is done after
all or nothing is to be done with it any more. Until then it counts neither as work that is due nor as work that is
late: it would hide everything that is late behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import Connection

from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.jobs.batches import BadRow
from ticketflow_orch.outbox.alerts import Alert, alert_once

# A run is requested for the sake of a row that is left out no more often than this; whatever run comes tries it.
TRIED_EVERY = timedelta(minutes=15)
# Where more rows of a job are left out, something else is wrong than each of them: the others are only counted.
ALERTED = 100


@dataclass(frozen=True, slots=True)
class LeftOutRow:
    """A row that the runs of `job` leave out `since` then (business time, aware); `more`: how many others there are."""

    job: str
    name: str
    error: str
    since: datetime
    more: int


@dataclass(frozen=True, slots=True)
class JobMemory:
    """What `job` remembers at `now` (business time, aware) of the rows that it leaves out, and alerts of them.

    A `batches.Memory`. `scope`: what their keys begin with, where the job has several works.
    """

    job: str
    now: datetime
    scope: str = ""

    def known(self, connection: Connection) -> list[int]:
        """The ids of the rows that were left out before; those that were tried least lately first."""
        return [int(key) for key in known(connection, self.job, self.scope)]

    def note(self, connection: Connection, row: BadRow, *, at_once: bool) -> None:
        """As the function `note`, under the scope's key."""
        note(connection, self.job, row, self.now, key=f"{self.scope}{row.id}", at_once=at_once)

    def end(self, connection: Connection, rows: Sequence[int]) -> None:
        """The breaks of these rows are over."""
        end(connection, self.job, [f"{self.scope}{row}" for row in rows])


def alert_of(job: str, row: BadRow) -> Alert:
    """What operators learn of a row that the runs of `job` leave out."""
    said = {"job": job, "row": row.called, "error": row.error}
    return Alert("RowLeftOut", f"{job} {row.called}", said, subject=job, recurs=True)


def note(
    connection: Connection, job: str, row: BadRow, now: datetime, *, key: str | None = None, at_once: bool = True
) -> None:
    """Remember that `job` has left out `row` at `now`, and alert of it once in this break; of ALERTED at most.

    `key`: what it is remembered by, where that is not its id. `at_once`: not only when it is met a second time.
    """
    key = str(row.id) if key is None else key
    connection.exec_driver_sql(_NOTE, {"job": job, "key": key, "name": str(row.called), "error": row.error, "now": now})
    to_alert = {"job": job, "key": key, "at_once": at_once, "most": ALERTED}
    if connection.exec_driver_sql(_TO_ALERT, to_alert).rowcount == 0:
        return
    alert = alert_of(job, row)
    # Each break has a name of its own, and the first one the same after a restore.
    breaks = connection.exec_driver_sql(_BREAKS, {"kind": alert.kind, "key": alert.key}).scalar_one()
    alert_once(connection, replace(alert, key=f"{alert.key} #{breaks + 1}") if breaks else alert, now)


def known(connection: Connection, job: str, scope: str = "") -> list[str]:
    """The keys of the rows that `job` leaves out, without the `scope` that they begin with; the least tried first."""
    return list(connection.exec_driver_sql(_KNOWN, {"job": job, "scope": scope}).scalars())


def end(connection: Connection, job: str, keys: Sequence[str]) -> None:
    """The breaks of these rows are over."""
    connection.exec_driver_sql(_END, {"job": job, "keys": list(keys)})


def end_others(connection: Connection, job: str, still: Sequence[BadRow], scope: str = "") -> None:
    """The breaks of all rows but `still` are over, of those whose keys begin with `scope`."""
    connection.exec_driver_sql(_END_OTHERS, {"job": job, "keys": [str(row.id) for row in still], "scope": scope})


def left_out(connection: Connection, most: int = 20) -> tuple[LeftOutRow, ...]:
    """The first `most` rows that each job leaves out, the oldest break first."""
    return tuple(LeftOutRow(**row._mapping) for row in connection.exec_driver_sql(_LEFT_OUT, {"most": most}))


def is_left_out(job: str, key: str) -> str:
    """SQL: whether `job` leaves out the row whose id the SQL `key` says; a probe of the primary key."""
    return sql(__file__, "is_left_out", job=job, key=key)


def any_to_try(job: str) -> str:
    """SQL: whether `job` leaves out a row that it has not tried since the bind `tried_before` (an instant)."""
    return sql(__file__, "any_to_try", job=job)


_NOTE = sql(__file__, "note")

_TO_ALERT = sql(__file__, "to_alert")

_BREAKS = "SELECT count(*) FROM alert WHERE kind = %(kind)s AND (key = %(key)s OR starts_with(key, %(key)s || ' #'))"

_KNOWN = """
    SELECT substr(row_key, length(%(scope)s) + 1) FROM bad_row
    WHERE job = %(job)s AND starts_with(row_key, %(scope)s) ORDER BY tried_at, row_key
"""

_END = "DELETE FROM bad_row WHERE job = %(job)s AND row_key = ANY (%(keys)s::text[])"

_END_OTHERS = """
    DELETE FROM bad_row
    WHERE job = %(job)s AND starts_with(row_key, %(scope)s) AND row_key <> ALL (%(keys)s::text[])
"""

_LEFT_OUT = sql(__file__, "left_out")
