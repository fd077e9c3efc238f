"""Requesting a month's payouts: a row and its outbox event in one statement, once per organization and currency.

Here the schedules ask which months are due, too. What happens to a payout later is in `actions`, `parking` and
`provider_answers`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from sqlalchemy import Connection, Engine

from ticketflow_orch.closing.history import pays_from_of
from ticketflow_orch.closing.require_closed import require_closed
from ticketflow_orch.db.engine import transaction
from ticketflow_orch.db.errors import in_words
from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.jobs import bad_rows
from ticketflow_orch.jobs.batches import NAMED, BadRow, InKeyOrder, named
from ticketflow_orch.months import Month
from ticketflow_orch.outbox.alerts import Alert, alert_once
from ticketflow_orch.outbox.decisions import waking
from ticketflow_orch.payouts.backing import PARKED, is_parked
from ticketflow_orch.payouts.events import EVENT_KEY, EVENTS
from ticketflow_orch.payouts.paid_from import UNREQUESTED, first_paid_month
from ticketflow_orch.payouts.review import HELD_FOR_REVIEW, CurrencyReview, review
from ticketflow_orch.periods.state import PERIODS, marking_paid, paid_at
from ticketflow_orch.settings import Settings
from ticketflow_orch.settlement.anomalies import OPEN, search, standing
from ticketflow_orch.settlement.posting import SMALLEST_ID

# Organization and currency.
_Key = tuple[int, str]


class PayoutsLeftOutError(RuntimeError):
    """Payouts could not be written, because of what is in them; all others are. The message names them."""


@dataclass(frozen=True, slots=True)
class PayoutRules:
    """How payouts are requested, at `now` by the business clock (aware).

    `review_factor`, `review_first`: which payouts wait for a person, see `review`. `review_anomalies`: so does one with
    more anomalies of its organization, in its currency and up to its month, than this share of it. `chunk_size`:
    payouts a transaction.
    """

    now: datetime
    review_factor: Decimal = Decimal(3)
    review_first: bool = False
    review_anomalies: Decimal = Decimal("0.1")
    chunk_size: int = 5000

    @classmethod
    def configured(cls, settings: Settings, now: datetime) -> PayoutRules:
        """The rules that `settings` make, at the instant `now`."""
        return cls(now, settings.payout_review_factor, settings.payout_review_first, settings.payout_review_anomalies)


@dataclass(frozen=True, slots=True)
class CurrencyRequested:
    """What a month owes in a currency, in minor units, and why its payouts are held, if they are."""

    currency: str
    exponent: int
    payouts: int
    amount: int
    held: str | None


@dataclass(frozen=True, slots=True)
class PayoutsRequested:
    """What became of a month's payouts: `requested` and `held` were written now, `existing` before.

    `anomalous`: how many are held, since whenever, because movements of their organizations cannot all be right.
    `why_nobody`: why the month pays nobody, if so. `paid_at`: when the last of them had been requested, if all have.
    """

    month: Month
    why_nobody: str | None
    currencies: tuple[CurrencyRequested, ...]
    requested: int
    held: int
    existing: int
    paid_at: datetime | None
    anomalous: int = 0


def request_payouts(engine: Engine, month: Month, rules: PayoutRules, run_id: str | None = None) -> PayoutsRequested:
    """Write a payout, and the event that asks for it, for every balance of `month` with something to pay.

    Harmless to repeat, to run twice at once and to be killed: a payout's key is (organization, currency, month), its
    event is written by the same statement, and both are there or neither. Anomalies are searched for first; a payout
    with too many of them is held, and so is one to an organization that is parked by then, until it is no more. An
    organization is paid nothing for a month before the first that is paid. A payout that cannot be written stops only
    itself: it is alerted once and tried again by the next run, and until then the month is not paid.

    Raises:
        PreconditionFailed: the month is not CLOSED.
        PayoutsLeftOutError: payouts cannot be written; all others are.
    """
    with transaction(engine) as connection:
        require_closed(connection, month, "only closed months are paid")
        why_nobody = _why_nobody(month, first_paid_month(connection))
    search(engine)
    if why_nobody is not None:
        return PayoutsRequested(month, why_nobody, (), 0, 0, 0, None)
    with transaction(engine) as connection:
        reviews, held = review(connection, month, rules.review_factor, rules.now, hold_first=rules.review_first)
    work = _Writing(engine, month, held, rules, run_id)
    counts = sum(work.chunks(), Counter[str]())
    with transaction(engine) as connection:
        requested_at = mark_paid(connection, month)
        anomalous = _alert_anomalies(connection, month, rules.now)
        for row in work.bad[:NAMED]:
            bad_rows.note(connection, "payouts", row, rules.now)
        bad_rows.end_others(connection, "payouts", work.bad, scope=f"{month} ")
    if work.bad:
        raise PayoutsLeftOutError(
            f"{month} is not paid: {counts['requested']:,} payouts requested, {len(work.bad):,} left out; correct what "
            f"is wrong, then materialize payouts for {month} again. {named(work.bad)}"
        )
    reasons = {one.currency: one.reason for one in held}
    currencies = tuple(
        CurrencyRequested(one.currency, one.exponent, one.payouts, one.total, reasons.get(one.currency))
        for one in reviews
    )
    return PayoutsRequested(
        month, None, currencies, counts["requested"], counts["held"], counts["existing"], requested_at, anomalous
    )


def _alert_anomalies(connection: Connection, month: Month, now: datetime) -> int:
    """How many payouts of the month are held for anomalies; that there are any is alerted once."""
    anomalous = int(connection.exec_driver_sql(_ANOMALOUS, {"month": month.first_day}).scalar_one())
    if anomalous:
        reason = "anomalies: `ticketflow anomalies list` shows them"
        payload = {"month": str(month), "payouts": anomalous, "reason": reason}
        alert_once(connection, Alert(HELD_FOR_REVIEW, f"{month} anomalies", payload, recurs=True), now)
    return anomalous


def _why_nobody(month: Month, first: Month | None) -> str | None:
    if first is None:
        return "Nobody is paid: payouts are off; `ticketflow payouts from YYYY-MM` turns them on."
    if month < first:
        return f"Nobody is paid for {month}: payouts begin with {first}, and months before were settled elsewhere."
    return None


def mark_paid(connection: Connection, month: Month) -> datetime | None:
    """Write down that all payouts of the month are requested, unless one is missing or held; returns since when."""
    connection.exec_driver_sql(_MARK_PAID, {"month": month.first_day})
    return paid_at(connection, month)


def payouts_due_months(connection: Connection) -> tuple[Month, ...]:
    """The CLOSED months that pay anybody and whose payouts are not all written, or parked for no reason any more.

    In order. A month that only waits for a person to release what is held is not due: another run would find nothing to
    do.
    """
    first = first_paid_month(connection)
    if first is None:
        return ()
    days = connection.exec_driver_sql(_DUE_MONTHS, {"first": first.first_day}).scalars()
    return tuple(Month.of_day(day) for day in days)


@dataclass
class _Writing:
    """The payouts of a month, in chunks; `bad`: those that could not be written."""

    engine: Engine
    month: Month
    held: Sequence[CurrencyReview]
    rules: PayoutRules
    run_id: str | None
    bad: list[BadRow] = field(default_factory=list)

    def chunks(self) -> Iterator[Counter[str]]:
        """How many payouts each chunk requested, held and found existing."""
        first = (SMALLEST_ID, "")
        return InKeyOrder(self.engine, self._write, self._leave_out, first=first, size=self.rules.chunk_size).run()

    def _write(self, connection: Connection, after: _Key, size: int) -> tuple[_Key | None, Counter[str]]:
        values = self._after(after) | {
            "key": str(self.month),
            "held_currencies": [one.currency for one in self.held],
            "held_reasons": [one.reason for one in self.held],
            "share": self.rules.review_anomalies,
            "run_id": self.run_id,
            "size": size,
        }
        connection.exec_driver_sql(NOBODY_IS_PARKED_MEANWHILE)
        chunk = connection.exec_driver_sql(_WRITE, values).one()
        counts = Counter(requested=chunk.requested, held=chunk.held, existing=chunk.due - chunk.requested - chunk.held)
        return (chunk.last_organization, chunk.last_currency) if chunk.due == size else None, counts

    def _leave_out(self, connection: Connection, after: _Key, error: Exception) -> _Key:
        row = connection.exec_driver_sql(_NEXT, self._after(after)).one()
        name = f"{row.external_ref} for {self.month} in {row.currency}"
        why = f"The payout of {name} cannot be written: {in_words(error).rstrip('.')}."
        self.bad.append(BadRow(f"{self.month} {row.external_ref} {row.currency}", why))
        return row.organization_id, row.currency

    def _after(self, after: _Key) -> dict[str, object]:
        return {"month": self.month.first_day, "after_organization": after[0], "after_currency": after[1]}


# What is owed of a month behind a key, in no order.
_DUE = sql(__file__, "due", pays_from=pays_from_of("organization_id"))

_NEXT = sql(__file__, "next", due=_DUE)

# What nothing but a parking held that has ended by itself, as those do that a settlement began.
_PARKED_NO_MORE = sql(__file__, "parked_no_more", parked=PARKED, is_parked=is_parked("payout.organization_id"))

_WRITE = sql(
    __file__,
    "write",
    parked=PARKED,
    is_parked=is_parked("organization_balance.organization_id"),
    due=_DUE,
    open=OPEN,
    standing_now=standing("candidate"),
    standing_then=standing("candidate", "month_ends_at"),
    parked_no_more=_PARKED_NO_MORE,
    woken=waking("let_go", EVENT_KEY),
    events=EVENTS,
)

# A chunk sees who is parked, or the parking sees the chunk: each waits for the other.
NOBODY_IS_PARKED_MEANWHILE = "LOCK TABLE parked_organization IN SHARE MODE"

_ANOMALOUS = """
    SELECT count(*) FROM payout WHERE month = %(month)s::date AND state = 'HELD' AND anomalies_to IS NOT NULL
"""

# Of the row `period`: whether any of its payouts is held.
_HELD = "EXISTS (SELECT FROM payout WHERE payout.month = period.month AND payout.state = 'HELD')"

# Those held are found by payout_waiting_idx.
_MARK_PAID = marking_paid(f"NOT {_HELD} AND NOT {UNREQUESTED}")

_DUE_MONTHS = sql(
    __file__, "due_months", periods=PERIODS, held=_HELD, unrequested=UNREQUESTED, parked_no_more=_PARKED_NO_MORE
)
