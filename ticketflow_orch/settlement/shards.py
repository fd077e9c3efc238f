"""One month on several runs: how many it is worth, what a further run does, and who did what in the end.

The run that leads a month begins its pass, plans it, waits for all of its chunks and ends it. A further run takes
chunks until there is none to take. It decides nothing, so it may come late, twice, or die with a chunk in hand.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, Engine

from ticketflow_orch.db.retrying import asked
from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.formatting.counts import counted
from ticketflow_orch.months import Month
from ticketflow_orch.settlement.passes import Drained, ParkedLimitError, planned_windows, running_pass
from ticketflow_orch.settlement.posting import LARGEST_ID
from ticketflow_orch.settlement.worker import Drain


@dataclass(frozen=True, slots=True)
class OpenWork:
    """The pass `number` of a month, cut off at `cutoff_at`, with how many of its chunks are `planned` and not done."""

    number: int
    cutoff_at: datetime
    planned: int


@dataclass(frozen=True, slots=True)
class Hand:
    """What one worker of a run did: `rows` that it looked at, and the `seconds` that it was busy."""

    run_id: str
    worker: str
    chunks: int
    organizations: int
    rows: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Shared:
    """What a further run did for the pass `number` of `month`, worker by worker; nothing where it came late.

    `ended_because`: a sentence. `seconds`: its wall time.
    """

    month: Month
    number: int
    hands: tuple[Hand, ...]
    ended_because: str
    seconds: float

    @property
    def chunks(self) -> int:
        """Those of all its workers."""
        return sum(hand.chunks for hand in self.hands)

    @property
    def organizations(self) -> int:
        """Those in its chunks; one counts once for each month that a chunk looked at it for."""
        return sum(hand.organizations for hand in self.hands)

    @property
    def summary(self) -> str:
        """What it did, and why it did no more."""
        done = (
            f"{counted(self.chunks, 'chunk')} with {counted(self.organizations, 'organization')} done in "
            f"{self.seconds:.1f} s."
            if self.chunks
            else "Nothing was done."
        )
        return f"{done} {self.ended_because}"


def runs_by_size(connection: Connection, above: int, most: int) -> int:
    """How many runs a month is worth: one for each `above` organizations or part of them, `most` at most."""
    if most <= 1:
        return 1
    # No more are counted than can matter.
    organizations: int = connection.exec_driver_sql(
        "SELECT count(*) FROM (SELECT FROM organization LIMIT %(enough)s) AS enough", {"enough": above * (most - 1) + 1}
    ).scalar_one()
    return max(1, -(-organizations // above))


def open_work(connection: Connection, month: Month) -> OpenWork | None:
    """What is left of the pass of `month` that is running; None where none is, or it is not planned yet."""
    found = connection.exec_driver_sql(_OPEN_WORK, {"month": month.first_day}).one_or_none()
    return None if found is None else OpenWork(**found._asdict())


def further_runs(planned: int, shards: int, workers: int) -> range:
    """The numbers of the further runs that find work, of `shards` runs with `workers` each; the first one leads.

    One does as long as more chunks are `planned` than it and those before it have workers: the rest are in their hands
    when it comes.
    """
    return range(2, min(shards, (planned - 1) // workers) + 1)


def join(
    engine: Engine,
    month: Month,
    number: int,
    *,
    run_id: str,
    workers: int,
    parked_limit: int = 100,
    pause: float = 0,
    progress: Callable[[Drained], None] = lambda _: None,
) -> Shared:
    """Take chunks of the pass `number` of `month` until there is none to take; may be repeated, killed, and come late.

    What others hold is left to them, and to the run that leads the pass should one of them die. So is a pass in which
    too many organizations fail: that run gives it up. `engine` must allow `workers` + 2 connections, and each step is
    tried again while the database is away, for as long as the engine is patient. `pause`: seconds between two chunks.

    Raises:
        IncompleteSettlementError: one of its workers failed while others were at work.
    """
    started = time.monotonic()
    settlement = asked(engine, lambda connection: running_pass(connection, month))
    why = f"Pass {number} of {month} has ended."
    if settlement is not None and settlement.number == number:
        why = f"All other chunks of pass {number} of {month} are done or in other hands."
        windows = asked(engine, lambda connection: planned_windows(connection, settlement))
        drain = Drain(
            engine=engine, settlement=settlement, windows=windows, run_id=run_id, pause=pause,
            parked_limit=parked_limit, stop=threading.Event(), waits_for_others=False,
        )  # fmt: skip
        try:
            drain.run(workers, progress)
        except ParkedLimitError as error:
            why = f"The rest is left to the run that leads the month: {error}"
    done = asked(engine, lambda connection: hands(connection, month, [number], run_id))
    return Shared(month, number, done, why, time.monotonic() - started)


def hands(connection: Connection, month: Month, passes: Sequence[int], run_id: str | None = None) -> tuple[Hand, ...]:
    """Who did what in these passes of `month`, worker by worker, or only the workers of one run."""
    rows = connection.exec_driver_sql(
        _HANDS, {"month": month.first_day, "passes": list(passes), "run": run_id, "largest": LARGEST_ID}
    )
    return tuple(Hand(**row._asdict()) for row in rows)


def others_helped(connection: Connection, month: Month, passes: Sequence[int], run_id: str) -> bool:
    """Whether any other run than this one had a hand in these passes of `month`."""
    parameters = {"month": month.first_day, "passes": list(passes), "run": run_id}
    return bool(connection.exec_driver_sql(_OTHERS_HELPED, parameters).scalar_one())


_HANDS = sql(__file__, "hands")

_OTHERS_HELPED = sql(__file__, "others_helped")

_OPEN_WORK = sql(__file__, "open_work")
