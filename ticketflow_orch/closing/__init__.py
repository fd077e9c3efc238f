"""The books: what each organization is owed when a month is over, carried from month to month, closed for good.

`close_month` is the whole of it. `periods` says which month may be closed and moves it through its states, `balances`
writes what organizations are owed, `audit` asks whether the chain of balances and the ledger agree, `report` says what
came of it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, Engine

from ticketflow_orch.closing import checks
from ticketflow_orch.closing.balances import BalanceWriter
from ticketflow_orch.closing.periods import (
    Closer,
    IncompleteClosingError,
    begin,
    end,
    has_balances,
    require_turn,
    take_back,
)
from ticketflow_orch.closing.queries import CurrencyBalance, balance_totals, organizations_left_out
from ticketflow_orch.db.retrying import retried
from ticketflow_orch.errors import InvalidInput
from ticketflow_orch.months import Month
from ticketflow_orch.outbox import events
from ticketflow_orch.outbox.events import Publish
from ticketflow_orch.periods.state import PeriodState, closing_of, last_closed, period_state
from ticketflow_orch.settlement import IncompleteSettlementError, SettlementOptions, settle_month
from ticketflow_orch.settlement import checks as settlement_audit
from ticketflow_orch.settlement.anomalies import search as search_anomalies
from ticketflow_orch.settlement.due import is_changed
from ticketflow_orch.settlement.late_movements import next_movement_id
from ticketflow_orch.settlement.passes import is_being_settled
from ticketflow_orch.settlement.queries import ParkedOrganization

__all__ = ["ClosedBooks", "ClosingOptions", "IncompleteClosingError", "close_month"]

# How often what a person unparked while balances were written is written too.
_ROUNDS = 3
_NAMED = 5


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
        InvalidInput: the month may not be closed: it is not settled, or not the next in turn, or the ledger or the
            balances before it are not as they should be. Nothing is closed then.
        IncompleteClosingError: the month is not closed yet; says why, and running it again goes on from here.
    """
    options = options or ClosingOptions()
    started = time.monotonic()
    state = retried(engine, lambda: _state_in_turn(engine, month, now, first_month))
    if state is PeriodState.SETTLED:
        _settle_what_came_since(
            engine, month, now=now, first_month=first_month, closer=Closer(closed_by, run_id), options=options,
            publish=publish,
        )  # fmt: skip
        retried(engine, lambda: _require_fit(engine, month))
    rows_new = 0
    if state is not PeriodState.CLOSED:
        retried(engine, lambda: begin(engine, month, now, first_month))
        unfit = retried(engine, lambda: _unfit_as_frozen(engine, month))
        if unfit is not None:
            retried(engine, lambda: take_back(engine, month))
            raise InvalidInput(unfit)
        rows_new = _write_balances(engine, month, Closer(closed_by, run_id), options)
    retried(engine, lambda: search_anomalies(engine))

    def closed_books() -> ClosedBooks:
        with engine.connect() as connection:
            return _closed_books(
                connection,
                month,
                found_closed=state is PeriodState.CLOSED,
                resumed=state is PeriodState.CLOSING,
                rows_new=rows_new,
                seconds=time.monotonic() - started,
            )

    return retried(engine, closed_books)


def _state_in_turn(engine: Engine, month: Month, now: datetime, first_month: Month) -> PeriodState:
    with engine.connect() as connection:
        state = period_state(connection, month)
        if not state.is_frozen:
            require_turn(connection, month, now, first_month)
        return state


def _unfit_as_frozen(engine: Engine, month: Month) -> str | None:
    with engine.connect() as connection:
        return _unfit(connection, month, resumed=has_balances(connection, month))


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
        IncompleteClosingError: the settlement did not come to its end; says why.
    """

    def is_needless() -> bool:
        with engine.connect() as connection:
            return not (
                is_being_settled(connection, month) or is_changed(connection, month, next_movement_id(connection))
            )

    if retried(engine, is_needless):
        return
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


def _write_balances(engine: Engine, month: Month, closer: Closer, options: ClosingOptions) -> int:
    writer = BalanceWriter(engine, month, options.parked_limit)
    rows = 0
    for _ in range(_ROUNDS):
        rows += sum(writer.write(low, high) for low, high in writer.chunks(options.chunk_size))
        missing = retried(engine, lambda: end(engine, month, closer))
        if not missing.count:
            return rows
    example = missing.examples[0]
    raise IncompleteClosingError(
        f"{month} is not closed: {missing.count} balances are missing, such as that of {example.organization} in "
        f"{example.currency}; close it again."
    )


def _require_fit(engine: Engine, month: Month) -> None:
    with engine.connect() as connection:
        unfit = _unfit(connection, month)
    if unfit is not None:
        raise InvalidInput(unfit)


def _unfit(connection: Connection, month: Month, *, resumed: bool = False) -> str | None:
    """Why the month may not be closed as it is, in one sentence that names the check and the organizations.

    Once balances are written (`resumed`) who was entered since has no row, as in a month that is closed.
    """
    guards = (*settlement_audit.missing_guards(connection), *settlement_audit.order_faults(connection))
    if guards:
        return f"{month} is not closed, because the database does not guard the books: {'; '.join(guards)}."
    findings = {} if resumed else {"complete": settlement_audit.organizations_without_row(connection, month)}
    findings |= {"honest": settlement_audit.dishonest_organizations(connection, month)}
    before = last_closed(connection)
    if before is not None:
        findings |= {
            "chain_holds": checks.broken_chain(connection, before),
            "closed_months_unchanged": checks.changed_since_closing(connection, before),
        }
    for name, finding in findings.items():
        if finding.count:
            named = finding.examples[:_NAMED]
            examples = "; ".join(f"{one.organization} {one.currency} {one.what}" for one in named)
            more = f" and {finding.count - len(named)} more" if finding.count > len(named) else ""
            return f"{month} is not closed, because the check {name} is red for {finding.month}: {examples}{more}."
    return None


def _closed_books(
    connection: Connection, month: Month, *, found_closed: bool, resumed: bool, rows_new: int, seconds: float
) -> ClosedBooks:
    closing = closing_of(connection, month)
    return ClosedBooks(
        month=month,
        found_closed=found_closed,
        resumed=resumed,
        rows_new=rows_new,
        balances=balance_totals(connection, month, month),
        parked=organizations_left_out(connection, month),
        closed_by=closing.by,
        closed_role=closing.role,
        closed_at=closing.at,
        seconds=seconds,
    )
