"""How the back office is doing, as its database says: what metrics show and the health check judges.

Runs are short and gone when anybody asks, so everything is read from tables. Each figure is one query that an index
bounds, whatever the tables hold; a figure that could still grow without limit stops at `MOST`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from psycopg.errors import LockNotAvailable, QueryCanceled
from sqlalchemy import Connection, Engine

from ticketflow_orch import clock
from ticketflow_orch.db.engine import clocks, transaction
from ticketflow_orch.db.errors import in_words, is_a, is_one_row_s
from ticketflow_orch.db.installation import Installation, disagreements, other_names, read_installation
from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.jobs.bad_rows import LeftOutRow, left_out
from ticketflow_orch.jobs.claims import Execution, stale_claims
from ticketflow_orch.jobs.intervals import CLOSE_EVENTS, EXPIRE_RESERVATIONS, MONTHLY_SETTLEMENT, SEND_REMINDERS, Job
from ticketflow_orch.monitoring.durations import JOBS, Distribution, Traffic, latencies, run_times, traffic
from ticketflow_orch.monitoring.obstacles import Obstacle, read_obstacles
from ticketflow_orch.months import Month
from ticketflow_orch.outbox.backlog import Backlog, read_backlog
from ticketflow_orch.periods.state import PeriodState, read_periods
from ticketflow_orch.periods.zones import unknown_zones
from ticketflow_orch.settings import Settings
from ticketflow_orch.settlement.due import due_months
from ticketflow_orch.ticketing.captures import money_without_ticket
from ticketflow_orch.ticketing.events import oldest_due_event
from ticketflow_orch.ticketing.lifecycle import LifecycleRules
from ticketflow_orch.ticketing.reminders import ReminderRules, oldest_due_reminder
from ticketflow_orch.ticketing.reservations import oldest_due_reservation
from ticketflow_orch.ticketing.stuck_payments import stuck_payments

MOST = 100_000
NAMED = 100
_MOST_CASES = 1_000
_DAY = timedelta(days=1)
# In seconds: what one question may take, and all of them. A watchdog must have its answer in time.
_LONGEST_QUESTION = 3.0
_LONGEST = 10.0
# A statement that took too long, waited too long for a lock, or that an administrator ended.
_CANCELLED = (QueryCanceled, LockNotAvailable)

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Counted:
    """How many, by what: (job, host, outcome), (job, effect), (event type, state), (event type,), (state,), (job,).

    Or (kind, severity).
    """

    labels: tuple[str, ...]
    count: int


@dataclass(frozen=True, slots=True)
class Situation:
    """The state at `business_now` and, by the database's clock, at `database_now`.

    Counts of what happened are over the last 24 hours. `due_since` has an entry for each job whose work is waiting,
    `unstated` for each closed month that lacks statements: since when it is closed. `unknown_zones`: the first hundred
    organizations in a time zone that tzdata does not know, with its name. `clock_difference` is in seconds, positive
    where this host is ahead of the database. `unanswered`: the figures, or the jobs in `due_since`, that a row's own
    data keep from being known, and why; in their place stands what stands for nothing. `disagreements`: what this
    process's settings say otherwise than the database, which is followed. `left_out`: the first rows that each job
    leaves out.
    """

    business_now: datetime
    database_now: datetime
    clock_difference: float
    firings: tuple[Counted, ...]
    effects: tuple[Counted, ...]
    undelivered: tuple[Counted, ...]
    delivered: tuple[Counted, ...]
    last_success: Mapping[str, datetime]
    due_since: Mapping[str, datetime]
    outbox: Backlog
    payouts: tuple[Counted, ...]
    unsettled: tuple[Month, ...]
    unstated: Mapping[Month, datetime]
    unknown_zones: Mapping[str, str]
    parked: int
    stale: tuple[Execution, ...]
    stuck: int
    without_ticket: int
    unanswered: Mapping[str, str]
    obstacles: tuple[Obstacle, ...] = ()
    failed_runs: tuple[Counted, ...] = ()
    alerts: tuple[Counted, ...] = ()
    disagreements: tuple[str, ...] = ()
    left_out: tuple[LeftOutRow, ...] = ()
    kept_back: tuple[Counted, ...] = ()
    untold: Mapping[str, str] = field(default_factory=dict)
    run_times: tuple[Distribution, ...] = ()
    latencies: tuple[Distribution, ...] = ()
    traffic: tuple[Traffic, ...] = ()

    @property
    def missing(self) -> set[str]:
        """The figures that are not known, for whatever reason."""
        return {*self.unanswered, *self.untold}


def read_situation(engine: Engine, settings: Settings) -> Situation:
    """Ask the database, each question with a bound of its own and all together with one, ten seconds."""
    with transaction(engine) as connection:
        ask = _Questions(connection, time.monotonic() + _LONGEST)
        ask.bound()
        database_now, difference = clocks(connection)
        now = clock.now(settings.fixed_clock)
        installed, said_here = read_installation(connection), settings
        nothing: tuple[str, ...] = ()
        said = ask("disagreements", lambda: _disagreements(connection, installed, said_here, database_now), nothing)
        settings = installed.decided(settings)
        since = database_now - _DAY
        from_key, to_key = _key(since), _key(database_now + _DAY)
        counted = ask.counted
        return Situation(
            business_now=now,
            database_now=database_now,
            clock_difference=difference,
            firings=counted("firings", FIRINGS, since=since),
            effects=counted("effects", EFFECTS, since=since, from_key=from_key, to_key=to_key),
            undelivered=counted("undelivered", UNDELIVERED, most=MOST),
            delivered=counted("delivered", DELIVERED, since=since),
            last_success=ask("last_success", lambda: _last_success(connection), {}),
            due_since=_due_since(ask, settings, now),
            outbox=ask("outbox", lambda: read_backlog(connection), Backlog(database_now, None, 0, 0, 0, 0)),
            payouts=counted("payouts", PAYOUTS, most=MOST),
            unsettled=ask("unsettled", lambda: due_months(connection, now, Month.parse(settings.first_month)), ()),
            unstated=ask("unstated", lambda: _unstated(connection), {}),
            unknown_zones=ask("unknown_zones", lambda: _unknown_zones(connection), {}),
            parked=ask("parked", lambda: connection.exec_driver_sql(PARKED).scalar_one(), 0),
            stale=ask("stale", lambda: stale_claims(connection), ()),
            stuck=ask("stuck", lambda: len(stuck_payments(connection, _MOST_CASES)), 0),
            without_ticket=ask("without_ticket", lambda: len(money_without_ticket(connection, _MOST_CASES)), 0),
            unanswered=ask.unanswered,
            obstacles=ask("obstacles", lambda: _obstacles(connection, settings, now), ()),
            failed_runs=counted("failed_runs", FAILED_RUNS, since=since),
            alerts=counted("alerts", ALERTS),
            disagreements=said,
            left_out=ask("left_out", lambda: left_out(connection), ()),
            kept_back=counted("kept_back", KEPT_BACK, most=MOST),
            untold=ask.untold,
            # Last, since least hangs on them where the time is over.
            run_times=ask("run_times", lambda: run_times(connection, since, from_key, to_key), ()),
            latencies=ask("latencies", lambda: latencies(connection, since, MOST), ()),
            traffic=ask("traffic", lambda: traffic(connection, since, MOST), ()),
        )


def _disagreements(
    connection: Connection, installed: Installation, settings: Settings, now: datetime
) -> tuple[str, ...]:
    return (*other_names(connection, installed), *disagreements(installed, settings, now))


def _obstacles(connection: Connection, settings: Settings, now: datetime) -> tuple[Obstacle, ...]:
    return read_obstacles(connection, Month.parse(settings.first_month), now)


@dataclass
class _Questions:
    """Asks one question after the other until `deadline`; one that has no answer spoils no other.

    A bad row keeps its own question from being answered, a lock or a load that which needs it.
    """

    connection: Connection
    deadline: float
    unanswered: dict[str, str] = field(default_factory=dict)
    untold: dict[str, str] = field(default_factory=dict)

    def __call__(self, figure: str, question: Callable[[], Answer], nothing: Answer) -> Answer:
        """The answer to `question`, or `nothing` and a note why."""
        try:
            with self.connection.begin_nested():
                if self.bound():
                    return question()
            self.untold[figure] = f"the {_LONGEST:.0f} s for all questions were over"
        except Exception as error:
            if _took_too_long(error):
                self.untold[figure] = in_words(error)
            elif is_one_row_s(error):
                self.unanswered[figure] = in_words(error)
            else:
                raise
        return nothing

    def bound(self) -> bool:
        """Bound the next statements by what is left of the time; returns whether anything is."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            return False
        longest = f"{max(1, round(min(left, _LONGEST_QUESTION) * 1000))}ms"
        self.connection.exec_driver_sql(
            "SELECT set_config('statement_timeout', %(longest)s, true)", {"longest": longest}
        )
        return True

    def counted(self, figure: str, query: str, **parameters: object) -> tuple[Counted, ...]:
        """The counts of a query, whose other columns are their labels."""

        def count() -> tuple[Counted, ...]:
            rows = self.connection.exec_driver_sql(query, parameters)
            return tuple(Counted(tuple(labels), number) for *labels, number in rows)

        return self(figure, count, ())


def _took_too_long(error: Exception) -> bool:
    return is_a(error, *_CANCELLED)


def _key(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat(timespec="seconds")


def _last_success(connection: Connection) -> dict[str, datetime]:
    return {row.job: row.finished_at for row in connection.exec_driver_sql(LAST_SUCCESS)}


def _due_since(ask: _Questions, settings: Settings, now: datetime) -> dict[str, datetime]:
    rules = LifecycleRules.configured(settings, now)
    reminding = ReminderRules.configured(settings, now)
    questions: dict[Job, Callable[[], datetime | None]] = {
        CLOSE_EVENTS: lambda: oldest_due_event(ask.connection, rules),
        EXPIRE_RESERVATIONS: lambda: oldest_due_reservation(ask.connection, rules),
        SEND_REMINDERS: lambda: oldest_due_reminder(ask.connection, reminding),
    }
    found = {job.name: ask(job.name, question, None) for job, question in questions.items()}
    return {job: since for job, since in found.items() if since is not None}


def _unstated(connection: Connection) -> dict[Month, datetime]:
    return {
        one.month: one.closed_at
        for one in read_periods(connection)
        if one.closed_at is not None and one.stated_at is None and one.state is PeriodState.CLOSED
    }


def _unknown_zones(connection: Connection) -> dict[str, str]:
    unknown = unknown_zones(connection)
    rows = connection.exec_driver_sql(IN_ZONES, {"timezones": unknown, "most": NAMED}) if unknown else ()
    return {row.external_ref: row.timezone for row in rows}


FIRINGS = """
    SELECT job, host, outcome, count(*) FROM job_firing
    WHERE fired_at >= %(since)s::timestamptz
    GROUP BY job, host, outcome ORDER BY job, host, outcome
"""

EFFECTS = sql(__file__, "effects", jobs=JOBS)

LAST_SUCCESS = sql(__file__, "last_success", jobs=JOBS, settlement=MONTHLY_SETTLEMENT.name)

FAILED_RUNS = """
    SELECT subject, count(*) FROM alert JOIN alert_group ON alert_group.id = group_id
    WHERE alert.kind = 'RunFailed' AND alerted_at >= %(since)s::timestamptz
    GROUP BY subject ORDER BY subject
"""

ALERTS = """
    SELECT kind, lower(severity), count(*) FROM alert_group
    WHERE resolved_at IS NULL GROUP BY kind, severity ORDER BY kind, severity
"""

UNDELIVERED = """
    SELECT event_type, state, count(*) FROM (
        SELECT event_type, state FROM outbox_event
        WHERE ended_at IS NULL LIMIT %(most)s::bigint
    ) AS waiting
    GROUP BY event_type, state ORDER BY event_type, state
"""

# By the database's clock; the business's own may stand still, and the difference is a day at most.
KEPT_BACK = """
    SELECT event_type, count(*) FROM (
        SELECT event_type FROM outbox_event
        WHERE reconsider_until > statement_timestamp() LIMIT %(most)s::bigint
    ) AS kept
    GROUP BY event_type ORDER BY event_type
"""

DELIVERED = """
    SELECT event_type, count(*) FROM outbox_event
    WHERE state = 'DELIVERED' AND ended_at >= %(since)s::timestamptz
    GROUP BY event_type ORDER BY event_type
"""

# Those that the provider has not decided about: few, and found by their index.
PAYOUTS = """
    SELECT state, count(*) FROM (
        SELECT state FROM payout WHERE state IN ('HELD', 'REQUESTED', 'IN_DOUBT') LIMIT %(most)s::bigint
    ) AS waiting
    GROUP BY state ORDER BY state
"""

IN_ZONES = """
    SELECT external_ref, timezone FROM organization WHERE timezone = ANY (%(timezones)s::text[])
    ORDER BY external_ref LIMIT %(most)s::bigint
"""

PARKED = "SELECT count(*) FROM parked_organization WHERE resolved_at IS NULL"
