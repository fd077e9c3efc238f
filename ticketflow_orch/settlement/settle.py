"""Settling a month, pass by pass: begun or joined, waited for, planned, drained, finished, until all is read.

What a pass is, and how it begins and ends, is in `passes`; who is looked at, in `late_movements`; what is posted, in
`posting`, chunk by chunk as `worker` takes them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, Engine

from ticketflow_orch.db.retrying import asked, retried
from ticketflow_orch.months import Month
from ticketflow_orch.outbox import events
from ticketflow_orch.outbox.events import Publish
from ticketflow_orch.periods.state import is_read, takes_postings
from ticketflow_orch.settlement.due import require_settleable
from ticketflow_orch.settlement.late_movements import next_in_order
from ticketflow_orch.settlement.passes import (
    Drained,
    IncompleteSettlementError,
    ParkedLimitError,
    begin_or_join,
    finish,
    give_up,
    plan,
    wait_for_writers,
)
from ticketflow_orch.settlement.posting import Pass
from ticketflow_orch.settlement.queries import ParkedOrganization, work_done
from ticketflow_orch.settlement.shards import Hand, hands, others_helped
from ticketflow_orch.settlement.worker import Drain

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
    posted any more: the month, or a later one, is closed or being closed. `hands`: who did what, where others helped.
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
    hands: tuple[Hand, ...] = ()

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
    second from the calling thread; `stop`, once set, ends the run after the chunks that are being posted.

    Each step is tried again while the database is away, for as long as the engine is patient.

    Raises:
        InvalidInput: the month is before `first_month`; nothing was written.
        PreconditionFailed: it is not over in every zone in use, this host's clock and the database's disagree, or the
            order of recording is lost; nothing was written.
        IncompleteSettlementError: the month is not settled; says why, and running it again goes on from here.
    """
    options = options or SettlementOptions()
    started = time.monotonic()
    boundary = asked(engine, lambda connection: _boundary(connection, month, now, first_month))
    if boundary is None:
        return SettlementResult(month, None, False, 0, 0, 0, 0, (), 0, time.monotonic() - started)
    run = _Run(engine, run_id, settled_by, now, options, publish, progress, stop or threading.Event())
    passes: dict[int, Pass] = {}
    has_joined = False
    for _ in range(_PASSES):
        settlement, joined = retried(engine, lambda: begin_or_join(engine, month, full=options.full))
        passes[settlement.number] = settlement
        has_joined |= joined
        run.carry_out(settlement, boundary)
        done = asked(engine, lambda connection: is_read(connection, month, boundary))
        if done and settlement.is_full >= options.full:
            break
    else:
        raise IncompleteSettlementError(
            f"{month} is not settled after {_PASSES} passes that this run worked on; other runs gave them up, or new "
            "time zones kept coming into use. Settle it again."
        )
    work = asked(engine, lambda connection: work_done(connection, tuple(passes.values())))
    shared = asked(engine, lambda connection: others_helped(connection, month, tuple(passes), run_id))
    return SettlementResult(
        month=month,
        settlement=settlement,
        joined=has_joined,
        chunks=work.chunks,
        rows_new=work.rows_new,
        rows_adjusted=work.rows_adjusted,
        rows_existing=work.rows_existing,
        parked=work.parked,
        workers=options.workers,
        seconds=time.monotonic() - started,
        hands=asked(engine, lambda connection: hands(connection, month, tuple(passes))) if shared else (),
    )


def _boundary(connection: Connection, month: Month, now: datetime, first_month: Month) -> int | None:
    """A movement id after all that were recorded by now; None where nothing may be posted in the month any more."""
    require_settleable(connection, month, now, first_month)
    return next_in_order(connection) if takes_postings(connection, month) else None


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
                engine=engine, settlement=settlement, windows=windows, run_id=self.run_id, pause=options.chunk_pause,
                parked_limit=options.parked_limit, stop=self.stop,
            )  # fmt: skip
            drain.run(options.workers, self.progress)
        except ParkedLimitError as error:
            why = str(error)
            retried(engine, lambda: give_up(engine, settlement, why), self.stop)
            if settlement.cutoff > boundary:
                raise
        else:
            retried(engine, lambda: finish(engine, settlement, self.now, self.settled_by, self.publish), self.stop)
