"""Daily windows that were started and not completed: which run it was and what it failed on.

A later window, or a launch by hand, that is completed makes up for those before it: what these jobs do is what is due.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, text

# Older ones are the business of whoever let them stand for so long.
WITHIN = timedelta(days=7)
# Until then a run may still be about to claim its window.
PATIENCE = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The window `scheduled_for` of `job` that the run `run_id` did not complete; `error`: one line, if it left any."""

    job: str
    scheduled_for: datetime
    run_id: str
    error: str | None


def unfinished_windows(connection: Connection, jobs: Sequence[str]) -> tuple[Unfinished, ...]:
    """The windows of `jobs` that were started, and that nobody completes or has made up for; the oldest first.

    One whose claim was left by a dead holder is a stale claim, and told as such.
    """
    rows = connection.execute(_UNFINISHED, {"jobs": list(jobs), "within": WITHIN, "patience": PATIENCE})
    return tuple(Unfinished(row.job, row.scheduled_for, row.run_id, _first_line(row.error)) for row in rows)


def _first_line(error: str | None) -> str | None:
    return next((line.strip() for line in (error or "").splitlines() if line.strip()), None)


_UNFINISHED = text("""
    WITH started AS (
        SELECT DISTINCT ON (job, scheduled_for) job, scheduled_for, run_id, fired_at,
            to_char(scheduled_for AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"+00:00"') AS key
        FROM job_firing
        WHERE job = ANY (CAST(:jobs AS text[])) AND partition IS NULL
            AND fired_at >= clock_timestamp() - CAST(:within AS interval)
        ORDER BY job, scheduled_for, fired_at DESC
    )
    SELECT started.job, scheduled_for, run_id, result ->> 'error' AS error
    FROM started
    LEFT JOIN job_execution AS held ON held.job = started.job AND held.idempotency_key = started.key
    WHERE (held.state = 'FAILED'
            OR (held.state IS NULL AND fired_at < clock_timestamp() - CAST(:patience AS interval)))
        AND NOT EXISTS (
            SELECT FROM job_execution AS later
            WHERE later.job = started.job AND later.state = 'COMPLETED'
                AND (later.idempotency_key > started.key OR later.finished_at > fired_at))
    ORDER BY scheduled_for, started.job
""")
