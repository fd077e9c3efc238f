"""Retention: what the daily housekeeping deletes from TicketFlow's own tables, in batches.

Only records of what is over and done with go. What stays, however old: events that are pending, in flight, held, dead
or in doubt; reminders, whose key is what keeps anybody from being reminded twice; the memory of alerts; the claims of
daily and monthly work; everything about money. Each effect whose event is deleted has another guarantee of happening
once: a state machine, or a row that stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import Engine, TextClause, text

from ticketflow_orch.database import transaction
from ticketflow_orch.retrying import retried


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """How long records are `kept`; `minute_jobs` are those whose claims go too, once their window is older than that.

    A claim must outlive the largest lateness of a run of its window. Without it the run would look for work that is
    due like any other: harmless, and wasted.
    """

    kept: timedelta
    minute_jobs: Sequence[str] = ()
    batch_size: int = 1000


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many rows of each table were deleted."""

    outbox_events: int
    firings: int
    claims: int


def prune(engine: Engine, rules: RetentionRules) -> Pruned:
    """Delete what is older than `rules` allow, by the database's clock."""
    with engine.connect() as connection:
        now: datetime = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
    before = now - rules.kept
    # The windows' keys are instants in UTC, so their order is that of time.
    before_key = before.astimezone(UTC).isoformat(timespec="seconds")

    def delete_batch(statement: TextClause, parameters: Mapping[str, object]) -> int:
        with transaction(engine) as connection:
            batch: int = connection.execute(statement, {"size": rules.batch_size, **parameters}).scalar_one()
        return batch

    def delete(what: str, **parameters: object) -> int:
        statement = text(what)
        deleted = 0
        while True:
            batch = retried(engine, lambda: delete_batch(statement, parameters))
            deleted += batch
            if batch < rules.batch_size:
                return deleted

    return Pruned(
        outbox_events=delete(_ENDED, before=before),
        firings=delete(_FIRINGS, before=before),
        claims=sum(delete(_CLAIMS, job=job, before_key=before_key) for job in rules.minute_jobs),
    )


# Nobody but the outbox's owner may delete from it by another way.
_ENDED = "SELECT outbox_prune(CAST(:before AS timestamptz), CAST(:size AS bigint))"

_FIRINGS = """
    WITH gone AS (
        DELETE FROM job_firing WHERE id IN (
            SELECT id FROM job_firing
            WHERE fired_at < CAST(:before AS timestamptz)
            ORDER BY fired_at LIMIT CAST(:size AS bigint))
        RETURNING 1
    )
    SELECT count(*) FROM gone
"""

_CLAIMS = """
    WITH gone AS (
        DELETE FROM job_execution WHERE job = :job AND idempotency_key IN (
            SELECT idempotency_key FROM job_execution
            WHERE job = :job AND idempotency_key < :before_key AND state = 'COMPLETED'
            ORDER BY idempotency_key LIMIT CAST(:size AS bigint))
        RETURNING 1
    )
    SELECT count(*) FROM gone
"""
