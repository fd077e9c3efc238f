"""The monthly settlement: what every organization's movements of a month come to, posted once to the cent.

`settle_month` is the whole of it. `passes` begins, plans and ends a pass, `closed_months` says what it takes in for
months that are closed, `cutting` cuts chunks, `drain` works through them, `posting` holds the SQL that counts, `report`
says what came of it. `dry_run` says beforehand what would.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Engine

from ticketflow_orch import outbox
from ticketflow_orch.errors import InputError
from ticketflow_orch.months import Month
from ticketflow_orch.outbox import Publish
from ticketflow_orch.settlement.closed_months import takes_postings
from ticketflow_orch.settlement.drain import Drain
from ticketflow_orch.settlement.passes import (
    Drained,
    IncompleteSettlementError,
    ParkedLimitError,
    begin_or_join,
    drained,
    finish,
    give_up,
    period_state,
    plan,
    require_over,
    wait_for_writers,
)
from ticketflow_orch.settlement.posting import Pass
from ticketflow_orch.settlement.report import ParkedOrganization, parked_in_pass, posted_by_pass

__all__ = ["Drained", "IncompleteSettlementError", "SettlementOptions", "SettlementResult", "settle_month"]


@dataclass(frozen=True, slots=True)
class SettlementOptions:
    """How a settlement is carried out; none of it changes what is posted. See `settings` for units."""

    chunk_size: int = 20_000
    chunk_pause: float = 0
    workers: int = 2
    writer_wait: float = 60
    parked_limit: int = 100


@dataclass(frozen=True, slots=True)
class SettlementResult:
    """What a pass did, over all the runs that worked on it.

    `cutoff` (UTC): it looked at what was recorded before. `joined`: another run had begun the pass. Rows: settlement
    rows written, adjustments written, rows found as they should be. `seconds`: this run's wall time.
    `settlement` is None where nothing may be posted any more: the month, or a later one, is closed or being closed.
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
        """All rows that the pass looked at."""
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
    publish: Publish = outbox.append,
    progress: Callable[[Drained], None] = lambda _: None,
    stop: threading.Event | None = None,
) -> SettlementResult:
    """Settle `month` completely, or raise; may be repeated, killed and run several times at once.

    A pass posts recomputed minus posted: everything at first, nothing when nothing came late, otherwise adjustments.
    A run that finds a pass under way joins it, and every run ends only when the month is settled. Only a pass on which
    too many organizations fail is given up, so that the next run sees what was mended.

    `now` is the business time (aware), `run_id` and `settled_by` are recorded. `engine` must allow `workers` + 2
    connections. `publish` writes an outbox event in the transaction it is given. `progress` is called about once a
    second from the calling thread; `stop`, once set, ends the run after the chunks in hand.

    Raises:
        InputError: the month is before `first_month` or not over in every zone in use; nothing was written.
        IncompleteSettlementError: the month is not settled; says why, and running it again goes on from here.
    """
    options = options or SettlementOptions()
    started = time.monotonic()
    if month < first_month:
        raise InputError(f"{month} is before {first_month}, the first month; set TICKETFLOW_FIRST_MONTH to settle it.")
    with engine.connect() as connection:
        require_over(connection, month, now)
        if not takes_postings(connection, month):
            return SettlementResult(month, None, False, 0, 0, 0, 0, (), 0, time.monotonic() - started)
    settlement, joined = begin_or_join(engine, month)
    wait_for_writers(engine, settlement, options.writer_wait)
    windows = plan(engine, settlement, options.chunk_size)
    drain = Drain(
        engine=engine, settlement=settlement, windows=windows, run_id=run_id, pause=options.chunk_pause,
        parked_limit=options.parked_limit, stop=stop or threading.Event(),
    )  # fmt: skip
    try:
        drain.run(options.workers, progress)
    except ParkedLimitError:
        give_up(engine, settlement)
        raise
    finish(engine, settlement, now, settled_by, publish)
    with engine.connect() as connection:
        if period_state(connection, month) == "OPEN":
            raise IncompleteSettlementError(
                f"{month} is still open after its pass {settlement.number}; settle it again."
            )
        posted = posted_by_pass(connection, settlement)
        return SettlementResult(
            month=month,
            settlement=settlement,
            joined=joined,
            chunks=drained(connection, settlement).total,
            rows_new=posted.rows_new,
            rows_adjusted=posted.rows_adjusted,
            rows_existing=posted.rows_existing,
            parked=parked_in_pass(connection, settlement),
            workers=options.workers,
            seconds=time.monotonic() - started,
        )
