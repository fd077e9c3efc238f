"""Closing a month, step by step: its turn, what came since, judged, frozen, judged as frozen, written, closed.

What each step asks or changes is said where it is done: `turn`, `checks`, `freeze`, `balances`, `queries`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Engine

from ticketflow_orch.closing.balances import BalanceWriter
from ticketflow_orch.closing.freeze import Closer, IncompleteClosingError, finish, freeze, give_back
from ticketflow_orch.closing.invariants import why_unfit
from ticketflow_orch.closing.queries import CurrencyBalance, read_books
from ticketflow_orch.closing.turn import require_turn
from ticketflow_orch.db.retrying import asked, retried
from ticketflow_orch.errors import PreconditionFailed
from ticketflow_orch.months import Month
from ticketflow_orch.outbox import events
from ticketflow_orch.outbox.events import Publish
from ticketflow_orch.periods.state import PeriodState
from ticketflow_orch.settlement import IncompleteSettlementError, SettlementOptions, settle_month
from ticketflow_orch.settlement.anomalies import search
from ticketflow_orch.settlement.due import needs_another_pass
from ticketflow_orch.settlement.queries import ParkedOrganization

# How often what a person unparked while balances were written is written too.
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class ClosingOptions:
    """How a month is closed; none of it changes what its balances say. See `settings` for units.

    `writer_wait` is for the settlement of what came since the month was settled.
    """

    chunk_size: int = 20_000
    parked_limit: int = 100
    writer_wait: float = 60


@dataclass(frozen=True, slots=True)
class ClosedBooks:
    """What the books of a closed month say, and what this run did about it.

    `rows_new`: balances that this run wrote. `found_closed`: there was nothing left to do; `resumed`: it went on where
    another run was or had ended. `balances`: exact sums by currency. `parked`: organizations without a balance, the
    first hundred; their chains go on when they are not parked any more. `seconds`: this run's wall time.
    """

    month: Month
    found_closed: bool
    resumed: bool
    rows_new: int
    balances: tuple[CurrencyBalance, ...]
    parked: tuple[ParkedOrganization, ...]
    closed_by: str
    closed_role: str
    closed_at: datetime
    seconds: float


def close_month(
    engine: Engine,
    month: Month,
    *,
    now: datetime,
    first_month: Month,
    closed_by: str,
    run_id: str,
    options: ClosingOptions | None = None,
    publish: Publish = events.append,
) -> ClosedBooks:
    """Write the balances of `month` and freeze it, or raise; may be repeated, killed and run several times at once.

    What came since the month was settled is settled first, also where a run that began to do so was killed. Then the
    month's ledger is frozen, then it is judged as it will stay, then balances are written in chunks, a transaction
    each, and when none is missing the month is closed. A run that was killed in between leaves a month that is being
    closed, and the next run goes on. What looks wrong among its movements is noted in the end. `now` is the business
    time (aware); `closed_by` and `run_id` are recorded beside the role that the database knows. `engine` must allow
    three connections; each step is tried again while the database is away, for as long as it is patient.

    Raises:
        PreconditionFailed: the month may not be closed: it is not settled, or not the next in turn, or the ledger or
            the balances before it are not as they should be. Nothing is closed then.
        IncompleteClosingError: the month is not closed yet; says why, and running it again goes on from here.
    """
    options = options or ClosingOptions()
    started = time.monotonic()
    closer = Closer(closed_by, run_id)
    rows_new = 0
    found = asked(engine, lambda connection: require_turn(connection, month, now, first_month))
    if found is PeriodState.SETTLED:
        _settle_what_came_since(
            engine, month, now=now, first_month=first_month, closer=closer, options=options, publish=publish
        )
        _require_fit(engine, month, frozen=False)
    if found is not PeriodState.CLOSED:
        retried(engine, lambda: freeze(engine, month, now, first_month))
        _require_fit(engine, month, frozen=True)
        rows_new = _write_and_close(engine, month, closer, options)
    retried(engine, lambda: search(engine))
    books = asked(engine, lambda connection: read_books(connection, month))
    return ClosedBooks(
        month=month,
        found_closed=found is PeriodState.CLOSED,
        resumed=found is PeriodState.CLOSING,
        rows_new=rows_new,
        balances=books.balances,
        parked=books.parked,
        closed_by=books.closing.by,
        closed_role=books.closing.role,
        closed_at=books.closing.at,
        seconds=time.monotonic() - started,
    )


def _settle_what_came_since(
    engine: Engine,
    month: Month,
    *,
    now: datetime,
    first_month: Month,
    closer: Closer,
    options: ClosingOptions,
    publish: Publish,
) -> None:
    """Settle what was recorded before this moment; what comes while the month is being closed is the next one's.

    Raises:
        IncompleteClosingError: the settlement did not end; says why.
    """
    if asked(engine, lambda connection: needs_another_pass(connection, month)):
        try:
            settle_month(
                engine, month, now=now, first_month=first_month, run_id=closer.run_id, settled_by=closer.name,
                options=SettlementOptions(
                    chunk_size=options.chunk_size, workers=1, writer_wait=options.writer_wait,
                    parked_limit=options.parked_limit,
                ),
                publish=publish,
            )  # fmt: skip
        except IncompleteSettlementError as error:
            raise IncompleteClosingError(
                f"{month} is not closed, because what came since it was settled is not settled yet: {error}"
            ) from error


def _require_fit(engine: Engine, month: Month, *, frozen: bool) -> None:
    """Judge what the books would stand on; a month that is `frozen` and not fit is given back first.

    Raises:
        PreconditionFailed: it is not as it should be; names the check and the organizations.
    """
    unfit = asked(engine, lambda connection: why_unfit(connection, month, frozen=frozen))
    if unfit is not None:
        if frozen:
            retried(engine, lambda: give_back(engine, month))
        raise PreconditionFailed(unfit)


def _write_and_close(engine: Engine, month: Month, closer: Closer, options: ClosingOptions) -> int:
    """Write balances until none is missing, and close the month; how many this run wrote.

    Raises:
        IncompleteClosingError: some are still missing after a few rounds; names one of them.
    """
    writer = BalanceWriter(engine, month, options.parked_limit)
    rows = 0
    for _ in range(_ROUNDS):
        rows += writer.write_all(options.chunk_size)
        missing = retried(engine, lambda: finish(engine, month, closer))
        if not missing.count:
            return rows
    example = missing.examples[0]
    raise IncompleteClosingError(
        f"{month} is not closed: {missing.count} balances are missing, such as that of {example.organization} in "
        f"{example.currency}; close it again."
    )
