"""Daily windows that were started and not completed: which run it was and what it failed on.

A later window, or a launch by hand, that is completed makes up for those before it: what these jobs do is what is due.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection

from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.jobs import intervals

# Older ones are no news.
WITHIN = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The window `scheduled_for` of `job` that the run `run_id` did not complete; `error`: in one line, or None."""

    job: str
    scheduled_for: datetime
    run_id: str
    error: str | None


def unfinished_windows(connection: Connection, jobs: Sequence[str]) -> tuple[Unfinished, ...]:
    """The windows of `jobs` that were started, and that nobody completes or has made up for; the oldest first.

    One whose claim was left by a dead holder is a stale claim, and reported as such.
    """
    rows = connection.exec_driver_sql(
        _UNFINISHED, {"jobs": list(jobs), "within": WITHIN, "patience": intervals.MAY_STILL_CLAIM}
    )
    return tuple(Unfinished(row.job, row.scheduled_for, row.run_id, _first_line(row.error)) for row in rows)


def _first_line(error: str | None) -> str | None:
    return next((line.strip() for line in (error or "").splitlines() if line.strip()), None)


_UNFINISHED = sql(__file__, "unfinished")
