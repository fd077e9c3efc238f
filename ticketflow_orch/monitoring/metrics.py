"""The situation as Prometheus metrics: one collector that asks the database at every scrape.

What the figures are and where they come from is in `snapshot`; which of them are problems, in `health`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence

from prometheus_client.core import GaugeHistogramMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.jobs.bad_rows import LeftOutRow
from ticketflow_orch.jobs.intervals import WATCHED_BY_AGE
from ticketflow_orch.monitoring.deadlines import Asked, NoAnswerError
from ticketflow_orch.monitoring.durations import Distribution
from ticketflow_orch.monitoring.snapshot import Counted, Situation, read_situation
from ticketflow_orch.settings import Settings

# In seconds: when a scrape has its answer, whatever becomes of the database.
LONGEST = 15.0
_WATCHED_BY_AGE = [job.name for job in WATCHED_BY_AGE]
_LOG = logging.getLogger(__name__)

Family = GaugeMetricFamily | GaugeHistogramMetricFamily


class TicketFlowCollector(Collector):
    """All metrics of the back office, read from TicketFlow's database when they are asked for.

    Where it does not answer there is one, `ticketflow_up`, which is 0. Scrapes at the same time have the same answer;
    one that comes while an earlier one still waits for a silent database does not wait.
    """

    def __init__(self, engine: Engine, settings: Settings, longest: float = LONGEST) -> None:
        self._engine = engine
        self._settings = settings
        self._longest = longest
        self._asked: Asked[Situation] | None = None
        self._asking = threading.Lock()

    def collect(self) -> Iterator[Family]:
        """The situation now."""
        # Held for as long as it takes to begin: the other scrape is to find the question that this one asks.
        with self._asking:
            asked = self._asked
            if asked is None or asked.has_ended:
                asked = self._asked = Asked(lambda: [read_situation(self._engine, self._settings)])
        try:
            [situation] = asked.until(asked.began + self._longest)
        except (NoAnswerError, SQLAlchemyError, TicketflowError) as error:
            _LOG.warning("The database has no answer: %s", str(error) or f"none within {self._longest:.0f} s")
            return iter([is_up(answers=False)])
        return families(situation)


class Known(Collector):
    """Metrics that are known already."""

    def __init__(self, families: Sequence[Family]) -> None:
        self._families = families

    def collect(self) -> Sequence[Family]:
        """Those that it was made of."""
        return self._families


def is_up(*, answers: bool) -> GaugeMetricFamily:
    """Whether the database answers; the one metric that is always there."""
    family = GaugeMetricFamily("ticketflow_up", "1 where the database answers; 0: no other metric is there.")
    family.add_metric([], int(answers))
    return family


def families(situation: Situation) -> Iterator[Family]:
    """The metrics that `situation` makes, each documented with its unit. What is not known is not there."""
    yield is_up(answers=True)
    missing = situation.missing
    for figure, family in _families(situation):
        if figure not in missing:
            yield family


def _families(situation: Situation) -> Iterator[tuple[str, Family]]:
    """Each metric behind the name of the figure that it shows."""
    yield from _of_jobs(situation)
    yield from _of_the_outbox(situation)
    yield from _of_durations(situation)
    yield from _of_destinations(situation)
    for figure, name, meaning, value in _single_figures(situation):
        family = GaugeMetricFamily(f"ticketflow_{name}", meaning)
        family.add_metric([], value)
        yield figure, family


def _of_jobs(situation: Situation) -> Iterator[tuple[str, Family]]:
    yield (
        "firings",
        _counts(
            "job_firings_24h", "Starts of scheduled work in the last 24 hours.", "job host outcome", situation.firings
        ),
    )
    yield (
        "effects",
        _counts("job_effects_24h", "What completed windows of the last 24 hours did.", "job effect", situation.effects),
    )
    yield (
        "failed_runs",
        _counts(
            "runs_failed_24h", "Runs that failed in the last 24 hours and were alerted.", "job", situation.failed_runs
        ),
    )
    yield (
        "alerts",
        _counts("alerts_open", "What was alerted and stands, by subject.", "kind severity", situation.alerts),
    )
    yield (
        "last_success",
        _gauge(
            "job_last_success_timestamp_seconds",
            "When a job last completed a window. Minute jobs start only when something is due.",
            {job: instant.timestamp() for job, instant in situation.last_success.items()},
        ),
    )
    yield (
        "due_since",
        _gauge(
            "job_oldest_due_seconds",
            "For how long the work that has waited longest has been due; 0 where nothing is.",
            {
                job: max(
                    0, (situation.business_now - situation.due_since.get(job, situation.business_now)).total_seconds()
                )
                for job in _WATCHED_BY_AGE
                if job not in situation.missing
            },
        ),
    )
    yield (
        "left_out",
        _gauge(
            "job_rows_left_out",
            "Rows that a job cannot do; `ticketflow health` says which and why.",
            {job: sum(1 for row in rows) + max(rows[0].more, 0) for job, rows in _by_job(situation).items()},
        ),
    )


def _of_the_outbox(situation: Situation) -> Iterator[tuple[str, Family]]:
    yield (
        "undelivered",
        _counts(
            "outbox_events",
            "Events that are not delivered, by type and state; at most 100,000 are counted.",
            "event_type state",
            situation.undelivered,
        ),
    )
    yield (
        "delivered",
        _counts("outbox_delivered_24h", "Events delivered in the last 24 hours.", "event_type", situation.delivered),
    )
    yield (
        "kept_back",
        _counts(
            "mails_kept_back",
            "Mails that are not sent for a reason that may pass, by type; at most 100,000 are counted.",
            "event_type",
            situation.kept_back,
        ),
    )
    yield (
        "payouts",
        _counts(
            "payouts",
            "Payouts that are not decided, by state; at most 100,000 are counted.",
            "state",
            situation.payouts,
        ),
    )


def _of_durations(situation: Situation) -> Iterator[tuple[str, Family]]:
    yield (
        "run_times",
        _histogram(
            "job_run_time_24h_seconds",
            "How long completed windows of the last 24 hours took, as a histogram of those that there are now.",
            "job",
            situation.run_times,
        ),
    )
    yield (
        "latencies",
        _histogram(
            "outbox_latency_24h_seconds",
            "From an event's cause to its delivery, of those of the last 24 hours, at most 100,000, as a histogram.",
            "destination",
            situation.latencies,
        ),
    )


def _of_destinations(situation: Situation) -> Iterator[tuple[str, Family]]:
    for name, meaning, figure in (
        ("outbox_destination_delivered_24h", "Events delivered in the last 24 hours.", "delivered"),
        (
            "outbox_destination_attempts_24h",
            "Attempts at events that ended in the last 24 hours or wait still.",
            "attempts",
        ),
        ("outbox_destination_rate", "Events delivered by the second, over the last five minutes.", "rate"),
    ):
        family = GaugeMetricFamily(f"ticketflow_{name}", meaning, labels=["destination"])
        for one in situation.traffic:
            family.add_metric([one.destination], getattr(one, figure))
        yield "traffic", family


def _single_figures(situation: Situation) -> Iterator[tuple[str, str, str, float]]:
    """The figure, or nothing where it is always known; the metric's name, its meaning and its value."""
    yield from (
        (
            "outbox",
            "outbox_oldest_due_seconds",
            "For how long the oldest event has been due for delivery.",
            round(situation.outbox.oldest_age, 3),
        ),
        (
            "unsettled",
            "months_unsettled",
            "Months that are over in every zone and not settled.",
            len(situation.unsettled),
        ),
        ("unstated", "months_unstated", "Closed months that lack statements.", len(situation.unstated)),
        ("parked", "organizations_parked", "Organizations that a settlement had to leave out.", situation.parked),
        ("stale", "claims_stale", "Claims whose holder let the lease run out.", len(situation.stale)),
        ("stuck", "payments_stuck", "Payments that wait for a person; at most 1,000 are counted.", situation.stuck),
        (
            "without_ticket",
            "captures_without_ticket",
            "Captures that came after their reservation had ended; at most 1,000 are counted.",
            situation.without_ticket,
        ),
        (
            "clock_difference",
            "clock_difference_seconds",
            "This host's clock minus the database's.",
            round(situation.clock_difference, 3) + 0.0,
        ),
        (
            "",
            "settings_disagreeing",
            "Settings here that say otherwise than the database, which is followed; `ticketflow health` says which.",
            len(situation.disagreements),
        ),
        (
            "",
            "figures_missing",
            "Metrics that are missing because a row cannot be read or a question took too long; `ticketflow health` "
            "says which.",
            len(situation.missing),
        ),
    )


def _by_job(situation: Situation) -> dict[str, list[LeftOutRow]]:
    found: dict[str, list[LeftOutRow]] = {}
    for row in situation.left_out:
        found.setdefault(row.job, []).append(row)
    return found


def _counts(name: str, meaning: str, labels: str, counted: tuple[Counted, ...]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"ticketflow_{name}", meaning, labels=labels.split())
    for one in counted:
        family.add_metric(one.labels, one.count)
    return family


def _histogram(
    name: str, meaning: str, label: str, distributions: tuple[Distribution, ...]
) -> GaugeHistogramMetricFamily:
    family = GaugeHistogramMetricFamily(f"ticketflow_{name}", meaning, labels=[label])
    for one in distributions:
        family.add_metric([one.label], one.buckets, gsum_value=one.seconds)
    return family


def _gauge(name: str, meaning: str, by_job: dict[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"ticketflow_{name}", meaning, labels=["job"])
    for job, value in sorted(by_job.items()):
        family.add_metric([job], value)
    return family
