"""Retention: what the daily housekeeping deletes from TicketFlow's own tables, in batches.

Only records of what is over and done with go. What stays, however old: events that are pending, in flight, held, dead
or in doubt; reminders of a date that is not long past; claims that somebody holds, and those of daily and monthly work;
everything about money. Each effect whose event is deleted has another guarantee of happening once: a state machine, or
a row that stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from sqlalchemy import Engine

from ticketflow_orch.db.engine import transaction
from ticketflow_orch.db.retrying import retried

# Some 10,000 reminders: a fraction of a second.
_PAGES_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """How long records are `kept`; `minute_jobs` are those whose claims go too, once their window is older than that.

    A claim must outlive the largest lateness of a run of its window. Without it the run would look for work that is
    due like any other: harmless, and wasted.
    """

    kept: timedelta
    minute_jobs: Sequence[str] = ()
    batch_size: int = 1000


def prune_outbox(engine: Engine, rules: RetentionRules) -> int:
    """Delete the events that ended before; how many."""
    return _in_batches(engine, rules, _ENDED, before=_before(engine, rules))


def prune_firings(engine: Engine, rules: RetentionRules) -> int:
    """Delete the firings that happened before; how many."""
    return _in_batches(engine, rules, _FIRINGS, before=_before(engine, rules))


def prune_claims(engine: Engine, rules: RetentionRules) -> int:
    """Delete the claims of minute jobs whose windows were before, unless somebody holds one; how many."""
    before = _before(engine, rules)
    # The windows' keys are instants in UTC, so their order is that of time; what was launched by hand comes after them.
    before_key = before.astimezone(UTC).isoformat(timespec="seconds")
    return sum(
        _in_batches(engine, rules, _CLAIMS, job=job, before_key=before_key, before=before) for job in rules.minute_jobs
    )


def prune_reminders(engine: Engine, rules: RetentionRules) -> int:
    """Delete what was decided about reminders of events whose date was before; how many.

    Nobody is reminded of a date that has passed, so nothing hangs on them. The table is walked once, by its pages.
    """
    before = _before(engine, rules)
    with engine.connect() as connection:
        pages: int = connection.exec_driver_sql(_REMINDER_PAGES).scalar_one()
    deleted = 0
    for low in range(0, pages, _PAGES_AT_ONCE):
        values = {"before": before, "low": low, "high": low + _PAGES_AT_ONCE}
        deleted += retried(engine, partial(_deleted, engine, _REMINDERS, values))
    return deleted


def prune_alerts(engine: Engine, rules: RetentionRules) -> int:
    """Forget what was alerted before; how many. What it was about is gone by then, or is alerted again."""
    return _in_batches(engine, rules, _ALERTS, before=_before(engine, rules))


# Each deletes one kind of record and says how many. Firings go before the alerts about them.
STEPS: Mapping[str, Callable[[Engine, RetentionRules], int]] = {
    "outbox_events": prune_outbox,
    "firings": prune_firings,
    "claims": prune_claims,
    "reminders": prune_reminders,
    "alerts": prune_alerts,
}


def _before(engine: Engine, rules: RetentionRules) -> datetime:
    """The instant before which things go, by the database's clock."""
    with engine.connect() as connection:
        now: datetime = connection.exec_driver_sql("SELECT clock_timestamp()").scalar_one()
    return now - rules.kept


def _in_batches(engine: Engine, rules: RetentionRules, what: str, **parameters: object) -> int:
    statement = what
    deleted = 0
    while True:
        batch = retried(engine, lambda: _deleted(engine, statement, {"size": rules.batch_size, **parameters}))
        deleted += batch
        if batch < rules.batch_size:
            return deleted


def _deleted(engine: Engine, statement: str, values: Mapping[str, object]) -> int:
    with transaction(engine) as connection:
        number: int = connection.exec_driver_sql(statement, values).scalar_one()
    return number


# Nobody but the outbox's owner may delete from it by another way.
_ENDED = "SELECT outbox_prune(%(before)s::timestamptz, %(size)s::bigint)"

_FIRINGS = """
    WITH gone AS (
        DELETE FROM job_firing WHERE id IN (
            SELECT id FROM job_firing
            WHERE fired_at < %(before)s::timestamptz
            ORDER BY fired_at LIMIT %(size)s::bigint)
        RETURNING 1
    )
    SELECT count(*) FROM gone
"""

_CLAIMS = """
    WITH gone AS (
        DELETE FROM job_execution WHERE job = %(job)s AND idempotency_key IN (
            SELECT idempotency_key FROM job_execution
            WHERE job = %(job)s AND state <> 'PROCESSING' AND (
                idempotency_key < %(before_key)s
                OR (idempotency_key >= 'by hand ' AND finished_at < %(before)s::timestamptz))
            ORDER BY idempotency_key LIMIT %(size)s::bigint)
        RETURNING 1
    )
    SELECT count(*) FROM gone
"""

# By functions that know what is over and done with: these rows keep anybody from being alerted or reminded twice.
_REMINDER_PAGES = "SELECT pg_relation_size('reminder') / current_setting('block_size')::bigint + 1"

_REMINDERS = """
    SELECT reminder_prune(%(before)s::timestamptz, %(low)s::bigint, %(high)s::bigint)
"""

_ALERTS = "SELECT alert_prune(%(before)s::timestamptz, %(size)s::bigint)"
