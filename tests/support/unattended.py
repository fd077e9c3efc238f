"""What goes on by itself, day by day, without Dagster's daemon: the real schedules and what the assets do.

The schedules' own functions decide what is due; the business functions that the assets call do it.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

import dagster as dg
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG
from sqlalchemy import Engine, event

from schedules import close_books_schedule, payouts_schedule, settlement_schedule, statements_schedule
from tests.support.rows import instant
from ticketflow_orch.closing import ClosingOptions, IncompleteClosingError, close_month
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.months import Month, day_window, months_between
from ticketflow_orch.payouts import PayoutRules, PayoutsLeftOutError, request_payouts
from ticketflow_orch.settings import settings
from ticketflow_orch.settlement import IncompleteSettlementError, SettlementOptions, settle_month
from ticketflow_orch.statements import StatementOptions, StatementsLeftOutError, issue_statements
from ticketflow_orch.statements.storage import Place

_MAIL_FROM = instant("2025-10-01T00:00")
# One that cannot be paid or get a statement keeps nobody else from it, in this month or in those that follow.
LEFT_OUT = (PayoutsLeftOutError, StatementsLeftOutError)
# What a run, or a person's command, may answer instead of doing what it was asked for. Anything else is a fault.
REFUSALS = (TicketflowError, IncompleteSettlementError, IncompleteClosingError, *LEFT_OUT)

Work = Callable[[Engine], object]


class Killed(BaseException):
    """The process ends here, whatever it was about to do."""


@contextmanager
def doomed(engine: Engine, statements: int = 0, at: str = "") -> Iterator[Engine]:
    """An engine of a process that dies before the next statement, or commit, after so many; with `at`, of those."""
    doomed = connect_engine(engine.url, "doomed", connections=10)
    done = itertools.count()
    dead = threading.Event()

    def die(*arguments: object) -> None:
        statement = str(arguments[2]) if len(arguments) > 1 else ""
        if dead.is_set() or (at in statement and next(done) >= statements):
            dead.set()
            raise Killed

    for moment in ("before_cursor_execute", "commit"):
        event.listen(doomed, moment, die)
    try:
        with suppress(Killed):
            yield doomed
    finally:
        doomed.dispose()


@dataclass(frozen=True, slots=True)
class Tick:
    """As much of an evaluation's context as our schedules look at."""

    scheduled_execution_time: datetime
    instance: dg.DagsterInstance


@dataclass(frozen=True, slots=True)
class Here:
    """A database resource whose engine is open already."""

    here: Engine

    @contextmanager
    def engine(self, _: str) -> Iterator[Engine]:
        yield self.here


@dataclass
class Schedules:
    """What goes on by itself, at the hours at which it does; `say` takes a line about each run."""

    engine: Engine
    instance: dg.DagsterInstance
    place: Place
    say: Callable[[str], None]

    def day(self, day: date, run: Callable[[Work], None] | None = None) -> None:
        """All that the schedules do on a day; each run is handed to `run`, which may disturb it."""
        run = run or self._undisturbed
        for hour, schedule, work in (
            (5.0, settlement_schedule, self.settle),
            (6.0, close_books_schedule, self.close),
            (6.5, payouts_schedule, self.pay),
            (7.0, statements_schedule, self.state),
        ):
            if schedule is settlement_schedule and day.day == 1:
                continue
            at = day_window(day, settings().business_timezone).starts_at + timedelta(hours=hour)
            for months in self._asked(schedule, at):
                run(self._run(work, months, at))

    def settle(self, engine: Engine, month: Month, now: datetime, **options: Any) -> None:
        """As the asset does."""
        settle_month(
            engine, month, now=now, first_month=_first_month(), run_id="run", settled_by="schedule",
            options=SettlementOptions(**{"parked_limit": settings().parked_limit, "chunk_size": 2} | options),
        )  # fmt: skip

    def close(self, engine: Engine, month: Month, now: datetime, **options: Any) -> None:
        """As the asset does."""
        close_month(
            engine, month, now=now, first_month=_first_month(), closed_by="schedule", run_id="run",
            options=ClosingOptions(**{"parked_limit": settings().parked_limit, "chunk_size": 2} | options),
        )  # fmt: skip

    def pay(self, engine: Engine, month: Month, now: datetime) -> None:
        """As the asset does."""
        request_payouts(engine, month, PayoutRules.configured(settings(), now), "run")

    def state(self, engine: Engine, month: Month, now: datetime) -> None:
        """As the asset does."""
        issue_statements(engine, month, StatementOptions(self.place, mail_from=_MAIL_FROM), now=now)

    def _asked(self, schedule: dg.ScheduleDefinition, at: datetime) -> Sequence[Sequence[Month]]:
        # The function itself: the context that Dagster makes for it opens an instance each time, which takes longer
        # than all that is asked.
        asked: Any = schedule._execution_fn.decorated_fn(  # type: ignore[union-attr]
            Tick(at, self.instance), database=Here(self.engine)
        )
        if isinstance(asked, dg.SkipReason):
            return ()
        requests: Sequence[dg.RunRequest] = [asked] if isinstance(asked, dg.RunRequest) else asked
        return [_months_of(request) for request in requests]

    def _run(self, work: Callable[[Engine, Month, datetime], None], months: Sequence[Month], now: datetime) -> Work:
        def run(engine: Engine) -> None:
            for month in months:
                try:
                    work(engine, month, now)
                except REFUSALS as refusal:
                    self.say(f"{now:%m-%d %H:%M} {work.__name__} {month}: {refusal}")
                    if not isinstance(refusal, LEFT_OUT):
                        return
                    continue
                self.say(f"{now:%m-%d %H:%M} {work.__name__} {month}: done")

        return run

    def _undisturbed(self, work: Work) -> None:
        work(self.engine)


def _first_month() -> Month:
    return Month.parse(settings().first_month)


def _months_of(request: dg.RunRequest) -> Sequence[Month]:
    tags = request.tags
    if ASSET_PARTITION_RANGE_START_TAG in tags:
        first, last = (tags[name] for name in (ASSET_PARTITION_RANGE_START_TAG, ASSET_PARTITION_RANGE_END_TAG))
        return list(months_between(Month.parse(first), Month.parse(last)))
    return [Month.parse(str(request.partition_key))]
