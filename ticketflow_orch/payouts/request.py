"""Requesting a month's payouts: a row and its outbox event in one statement, once per organization and currency."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from sqlalchemy import Connection, Engine, text

from ticketflow_orch.alerts import alert_once
from ticketflow_orch.chunked import NAMED, BadRow, InKeyOrder, in_words, named
from ticketflow_orch.database import transaction
from ticketflow_orch.errors import InputError
from ticketflow_orch.months import Month
from ticketflow_orch.payouts.review import CurrencyReview, review
from ticketflow_orch.settings import Settings
from ticketflow_orch.settlement.late_movements import before_the_books
from ticketflow_orch.settlement.posting import SMALLEST_ID

EVENT_TYPE = "PayoutRequested"
AGGREGATE = "payout"

# Organization and currency.
_Key = tuple[int, str]


class PayoutsLeftOutError(RuntimeError):
    """Payouts could not be written, because of what is in them; all others are. The message names them."""


@dataclass(frozen=True, slots=True)
class PayoutRules:
    """Who is paid: months from `payouts_from` on, nobody without one; `now` is the business clock (aware).

    `review_factor`, `review_first`: which payouts wait for a person, see `review`. `chunk_size`: payouts a transaction.
    """

    now: datetime
    payouts_from: Month | None
    review_factor: Decimal = Decimal(3)
    review_first: bool = False
    chunk_size: int = 5000

    @classmethod
    def configured(cls, settings: Settings, now: datetime) -> PayoutRules:
        """The rules that `settings` make, at the instant `now`."""
        return cls(now, first_paid_month(settings), settings.payout_review_factor, settings.payout_review_first)

    def why_nobody(self, month: Month) -> str | None:
        """Why nobody is paid for `month`, in one sentence; None when its organizations are."""
        if self.payouts_from is None:
            return "Nobody is paid: TICKETFLOW_PAYOUTS_FROM names no month."
        if month < self.payouts_from:
            return f"Nobody is paid for {month}: TICKETFLOW_PAYOUTS_FROM is {self.payouts_from}."
        return None


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

    `why_nobody`: why the month pays nobody, if so. `paid_at`: when the last of them had been requested, if all have.
    """

    month: Month
    why_nobody: str | None
    currencies: tuple[CurrencyRequested, ...]
    requested: int
    held: int
    existing: int
    paid_at: datetime | None


def first_paid_month(settings: Settings) -> Month | None:
    """The first month that is paid, if anybody is."""
    return Month.parse(settings.payouts_from) if settings.payouts_from else None


def request_payouts(engine: Engine, month: Month, rules: PayoutRules, run_id: str | None = None) -> PayoutsRequested:
    """Write a payout, and the event that asks for it, for every balance of `month` with something to pay.

    Harmless to repeat, to run twice at once and to be killed: a payout's key is (organization, currency, month), its
    event is written by the same statement, and both are there or neither. What is owed to an organization that is
    parked by then is held. A month before `rules.payouts_from` writes nothing. A payout that cannot be written stops
    only itself: it is told once and tried again by the next run, and until then the month is not paid.

    Raises:
        InputError: the month is not CLOSED.
        PayoutsLeftOutError: payouts cannot be written; all others are.
    """
    why_nobody = rules.why_nobody(month)
    with transaction(engine) as connection:
        require_closed(connection, month)
        if why_nobody is not None:
            return PayoutsRequested(month, why_nobody, (), 0, 0, 0, None)
        reviews, held = review(connection, month, rules.review_factor, rules.now, hold_first=rules.review_first)
    work = _Writing(engine, month, held, rules, run_id)
    counts = sum(work.chunks(), Counter[str]())
    with transaction(engine) as connection:
        paid_at = mark_paid(connection, month)
        for row in work.bad[:NAMED]:
            alert_once(connection, row.alert("payouts"), rules.now)
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
    return PayoutsRequested(month, None, currencies, counts["requested"], counts["held"], counts["existing"], paid_at)


def require_closed(connection: Connection, month: Month) -> None:
    """Refuse a month whose books are not closed.

    Raises:
        InputError: they are not; the sentence says what state the month is in.
    """
    state = connection.execute(_STATE, {"month": month.first_day}).scalar_one_or_none()
    if state != "CLOSED":
        why_not = before_the_books(connection, month)
        if why_not is not None:
            raise InputError(why_not)
        found = f"is {state}" if state else "was never settled"
        raise InputError(f"{month} {found}, and only closed months are paid; materialize closed_books for it first.")


def mark_paid(connection: Connection, month: Month) -> datetime | None:
    """Write down that all payouts of the month are requested, unless one is missing or held; returns since when."""
    connection.execute(_MARK_PAID, {"month": month.first_day})
    paid_at: datetime | None = connection.execute(_PAID_AT, {"month": month.first_day}).scalar_one()
    return paid_at


def payouts_due_months(connection: Connection, payouts_from: Month | None) -> tuple[Month, ...]:
    """The CLOSED months from `payouts_from` on whose payouts are not all written, in order.

    A month that only waits for a person to release what is held is not due: another run would find nothing to do.
    """
    if payouts_from is None:
        return ()
    days = connection.execute(_DUE_MONTHS, {"first": payouts_from.first_day}).scalars()
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
            "now": self.rules.now,
            "run_id": self.run_id,
            "size": size,
        }
        chunk = connection.execute(_WRITE, values).one()
        counts = Counter(requested=chunk.requested, held=chunk.held, existing=chunk.due - chunk.requested - chunk.held)
        return (chunk.last_organization, chunk.last_currency) if chunk.due == size else None, counts

    def _leave_out(self, connection: Connection, after: _Key, error: Exception) -> _Key:
        row = connection.execute(_NEXT, self._after(after)).one()
        name = f"{row.external_ref} for {self.month} in {row.currency}"
        why = f"The payout of {name} cannot be written: {in_words(error).rstrip('.')}."
        self.bad.append(BadRow(f"{self.month} {row.external_ref} {row.currency}", why))
        return row.organization_id, row.currency

    def _after(self, after: _Key) -> dict[str, object]:
        return {"month": self.month.first_day, "after_organization": after[0], "after_currency": after[1]}


_STATE = text("SELECT state FROM settlement_period WHERE month = CAST(:month AS date)")

# What an event is written from: rows of payouts called `asked`. `release` writes the events of what was held.
EVENTS = f"""
    INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload, dedupe_key, occurred_at)
    SELECT '{AGGREGATE}', CAST(public_id AS text), '{EVENT_TYPE}',
        jsonb_build_object(
            'reference', public_id, 'organization', external_ref, 'month', to_char(month, 'YYYY-MM'),
            'currency', asked.currency, 'amount', amount),
        '{EVENT_TYPE}:' || public_id, CAST(:now AS timestamptz)
    FROM asked JOIN organization ON organization.id = organization_id
    ORDER BY organization_id, asked.currency
    ON CONFLICT (dedupe_key) DO NOTHING
"""

_DUE = """
        FROM organization_balance
        WHERE month = CAST(:month AS date) AND payable > 0
            AND (organization_id, currency) > (CAST(:after_organization AS bigint), CAST(:after_currency AS char(3)))
"""

_NEXT = text(f"""
    SELECT organization_id, due.currency, external_ref
    FROM (SELECT organization_id, currency {_DUE} ORDER BY organization_id, currency LIMIT 1) AS due
    JOIN organization ON organization.id = organization_id
""")

_WRITE = text(f"""
    WITH due AS MATERIALIZED (
        SELECT organization_id, currency, payable,
            CASE WHEN EXISTS (
                SELECT FROM parked_organization AS parked
                WHERE parked.organization_id = organization_balance.organization_id AND resolved_at IS NULL
            ) THEN 'its organization is parked' END AS parked
        {_DUE}
        ORDER BY organization_id, currency LIMIT CAST(:size AS bigint)
    ), written AS (
        INSERT INTO payout (organization_id, currency, month, amount, state, reason, run_id)
        SELECT organization_id, currency, CAST(:month AS date), payable,
            CASE WHEN why IS NULL AND parked IS NULL THEN 'REQUESTED' ELSE 'HELD' END,
            nullif(concat_ws('; ', why, parked), ''),
            CAST(:run_id AS text)
        FROM due LEFT JOIN unnest(CAST(:held_currencies AS char(3)[]), CAST(:held_reasons AS text[]))
            AS held (currency, why) USING (currency)
        ORDER BY organization_id, currency
        ON CONFLICT (organization_id, currency, month) DO NOTHING
        RETURNING public_id, organization_id, currency, month, amount, state
    ), asked AS (
        SELECT * FROM written WHERE state = 'REQUESTED'
    ), told AS (
        {EVENTS}
    )
    SELECT
        (SELECT count(*) FROM due) AS due,
        (SELECT count(*) FROM asked) AS requested,
        (SELECT count(*) FROM written WHERE state = 'HELD') AS held,
        last.organization_id AS last_organization, last.currency AS last_currency
    FROM (VALUES (1)) AS one LEFT JOIN LATERAL (
        SELECT * FROM due ORDER BY organization_id DESC, currency DESC LIMIT 1) AS last ON true
""")

_MISSING = """
    EXISTS (
        SELECT FROM organization_balance AS balance
        WHERE balance.month = period.month AND payable > 0 AND NOT EXISTS (
            SELECT FROM payout WHERE (payout.organization_id, payout.currency, payout.month)
                = (balance.organization_id, balance.currency, balance.month)))
"""
_HELD = "EXISTS (SELECT FROM payout WHERE payout.month = period.month AND payout.state = 'HELD')"

_MARK_PAID = text(f"""
    UPDATE settlement_period AS period SET paid_at = clock_timestamp()
    WHERE month = CAST(:month AS date) AND state = 'CLOSED' AND paid_at IS NULL AND NOT {_HELD} AND NOT {_MISSING}
""")

_PAID_AT = text("SELECT paid_at FROM settlement_period WHERE month = CAST(:month AS date)")

_DUE_MONTHS = text(f"""
    SELECT month FROM settlement_period AS period
    WHERE state = 'CLOSED' AND month >= CAST(:first AS date) AND paid_at IS NULL AND (NOT {_HELD} OR {_MISSING})
    ORDER BY month
""")
