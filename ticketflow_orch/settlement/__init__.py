"""The monthly settlement: what every organization's movements of a month come to, posted once to the cent.

`settle_month` is the whole of it. `zones` says when a month is over, `passes` begins, plans and ends a pass,
`late_movements` says who can have changed since the last one and what is taken in for closed months, `cutting` cuts
chunks, `drain` works through them, `posting` holds the SQL that counts, `report` says what came of it. `dry_run` says
beforehand what would.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from sqlalchemy import Engine

from ticketflow_orch.db.retrying import retried
from ticketflow_orch.errors import InvalidInput
from ticketflow_orch.months import Month
from ticketflow_orch.outbox import events
from ticketflow_orch.outbox.events import Publish
from ticketflow_orch.periods.state import is_read, takes_postings
from ticketflow_orch.periods.zones import require_over
from ticketflow_orch.settlement.late_movements import next_movement_id, require_order
from ticketflow_orch.settlement.passes import (
    Drained,
    IncompleteSettlementError,
    ParkedLimitError,
    begin_or_join,
    drained,
    finish,
    give_up,
    plan,
    wait_for_writers,
)
from ticketflow_orch.settlement.posting import Pass
from ticketflow_orch.settlement.queries import ParkedOrganization, parked_in_pass, posted_by_pass
from ticketflow_orch.settlement.worker import Drain

__all__ = ["Drained", "IncompleteSettlementError", "SettlementOptions", "SettlementResult", "settle_month"]


# A run joins the pass that it finds running, and then sees to one that began after itself; more than that takes other
# runs that give up what this one works on.
_PASSES = 5


@dataclass(frozen=True, slots=True)
class SettlementOptions:
    """How a settlement is carried out; none of it changes what is posted. See `settings` for units.

    `full`: recompute every organization, whatever earlier passes have read.
    """

    chunk_size: int = 20_000
    chunk_pause: float = 0
    workers: int = 2
    writer_wait: float = 60
    parked_limit: int = 100
    full: bool = False


@dataclass(frozen=True, slots=True)
class SettlementResult:
    """What a run's passes did, with the other runs that worked on them; `settlement` is the last of them.

    `joined`: one of them was begun by another run. Rows: settlement rows written, adjustments written, and of the rows
    looked at those found as they should be. `seconds`: this run's wall time. `settlement` is None where nothing may be
    posted any more: the month, or a later one, is closed or being closed.
    """

    month: Month
    settlement: Pass | None
    joined: bool
    chunks: int
    rows_new: int
    rows_adjusted: int
    rows_existing: int
    parked: tuple[ParkedOrganization, ...]
    workers: int
    seconds: float

    @property
    def rows(self) -> int:
        """All rows that the passes looked at."""
        return self.rows_new + self.rows_adjusted + self.rows_existing

    @property
    def changed_nothing(self) -> bool:
        """Whether the ledger was found as it should be."""
        return self.rows_new == self.rows_adjusted == 0


def settle_month(
    engine: Engine,
    month: Month,
    *,
    now: datetime,
    first_month: Month,
    run_id: str,
    settled_by: str,
    options: SettlementOptions | None = None,
    publish: Publish = events.append,
    progress: Callable[[Drained], None] = lambda _: None,
    stop: threading.Event | None = None,
) -> SettlementResult:
    """Settle `month` completely, or raise; may be repeated, killed and run several times at once.

    A pass posts recomputed minus posted: everything at first, nothing when nothing came late, otherwise adjustments. A
    run that finds a pass running joins it. It ends only when the month is settled with all that was recorded before
    the run began: a pass that had begun earlier is followed by another, which looks at what has changed since. Only a
    pass on which too many organizations fail is given up, so that the next one sees what was corrected.

    `now` is the business time (aware), `run_id` and `settled_by` are recorded. `engine` must allow `workers` + 2
    connections. `publish` writes an outbox event in the transaction it is given. `progress` is called about once a
    second from the calling thread; `stop`, once set, ends the run after the chunks in hand.

    Each step is tried again while the database is away, for as long as the engine is patient.

    Raises:
        InvalidInput: the month is before `first_month` or not over in every zone in use, this host's clock and the
            database's disagree, or the order of recording is lost; nothing was written.
        IncompleteSettlementError: the month is not settled; says why, and running it again goes on from here.
    """
    options = options or SettlementOptions()
    started = time.monotonic()
    if month < first_month:
        raise InvalidInput(
            f"{month} is before {first_month}, the first month; `ticketflow installation set first_month {month}` "
            "lets it be settled, unless a month is closed."
        )
    boundary = retried(engine, lambda: _boundary(engine, month, now))
    if boundary is None:
        return SettlementResult(month, None, False, 0, 0, 0, 0, (), 0, time.monotonic() - started)
    run = _Run(engine, run_id, settled_by, now, options, publish, progress, stop or threading.Event())
    passes: dict[int, tuple[Pass, bool]] = {}
    for _ in range(_PASSES):
        settlement, joined = retried(engine, lambda: begin_or_join(engine, month, full=options.full))
        passes[settlement.number] = settlement, joined
        run.carry_out(settlement, boundary)
        done = retried(engine, partial(_is_read, engine, month, boundary))
        if done and settlement.is_full >= options.full:
            return retried(engine, lambda: _result(engine, passes, options.workers, time.monotonic() - started))
    raise IncompleteSettlementError(
        f"{month} is not settled after {_PASSES} passes that this run worked on; other runs gave them up, or new time "
        "zones kept coming into use. Settle it again."
    )


def _boundary(engine: Engine, month: Month, now: datetime) -> int | None:
    """The next movement's id; None where nothing may be posted in the month any more."""
    with engine.connect() as connection:
        require_over(connection, month, now)
        if not takes_postings(connection, month):
            return None
        require_order(connection)
        return next_movement_id(connection)


def _is_read(engine: Engine, month: Month, boundary: int) -> bool:
    with engine.connect() as connection:
        return is_read(connection, month, boundary)


@dataclass(frozen=True, slots=True)
class _Run:
    """What a run brings to each pass that it works on."""

    engine: Engine
    run_id: str
    settled_by: str
    now: datetime
    options: SettlementOptions
    publish: Publish
    progress: Callable[[Drained], None]
    stop: threading.Event

    def carry_out(self, settlement: Pass, boundary: int) -> None:
        """Bring the pass to its end: done by this run or another, or given up.

        Raises:
            ParkedLimitError: too many organizations fail on what was recorded before `boundary`, the run's beginning.
        """
        engine, options = self.engine, self.options
        retried(engine, lambda: wait_for_writers(engine, settlement, options.writer_wait), self.stop)
        try:
            windows = retried(
                engine, lambda: plan(engine, settlement, options.chunk_size, options.parked_limit), self.stop
            )
            drain = Drain(
                engine=self.engine, settlement=settlement, windows=windows, run_id=self.run_id,
                pause=self.options.chunk_pause, parked_limit=self.options.parked_limit, stop=self.stop,
            )  # fmt: skip
            drain.run(self.options.workers, self.progress)
        except ParkedLimitError as error:
            why = str(error)
            retried(engine, lambda: give_up(engine, settlement, why), self.stop)
            if settlement.cutoff > boundary:
                raise
            return
        retried(engine, lambda: finish(engine, settlement, self.now, self.settled_by, self.publish), self.stop)


def _result(engine: Engine, passes: Mapping[int, tuple[Pass, bool]], workers: int, seconds: float) -> SettlementResult:
    settlement, _ = passes[max(passes)]
    with engine.connect() as connection:
        posted = [posted_by_pass(connection, each) for each, _ in passes.values()]
        return SettlementResult(
            month=settlement.month,
            settlement=settlement,
            joined=any(joined for _, joined in passes.values()),
            chunks=sum(drained(connection, each).total for each, _ in passes.values()),
            rows_new=sum(one.rows_new for one in posted),
            rows_adjusted=sum(one.rows_adjusted for one in posted),
            rows_existing=sum(one.rows_existing for one in posted),
            parked=parked_in_pass(connection, settlement),
            workers=workers,
            seconds=seconds,
        )
