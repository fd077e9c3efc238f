"""What came late: all that a settlement posted about a month that was settled before."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, text

from ticketflow_orch.months import Month
from ticketflow_orch.settlement.posting import Pass
from ticketflow_orch.settlement.queries import UNREAD, unread_bounds


@dataclass(frozen=True, slots=True)
class LateAdjustment:
    """One adjustment: posted in `month`, about `origin`, whose net it changed from `old` to `new` (minor units)."""

    external_ref: str
    name: str
    currency: str
    exponent: int
    month: Month
    origin: Month
    old: int
    new: int
    posted_at: datetime

    @property
    def difference(self) -> int:
        """By how much it changed the net."""
        return self.new - self.old


@dataclass(frozen=True, slots=True)
class LateAdjustments:
    """The first adjustments, the latest months first, and how many there are altogether."""

    listed: tuple[LateAdjustment, ...]
    count: int

    @property
    def more(self) -> int:
        """How many are not listed."""
        return self.count - len(self.listed)


@dataclass(frozen=True, slots=True)
class LateMoney:
    """What came late for a settled or closed month and is not posted yet: how many movements, their sum (minor units).

    `posted_in`: the month whose next settlement posts it. `altogether`: how many of these there are, listed or not.
    """

    external_ref: str
    origin: Month
    posted_in: Month
    currency: str
    exponent: int
    movements: int
    amount: int
    altogether: int


def late_money(connection: Connection, month: Month | None = None, limit: int = 100) -> tuple[LateMoney, ...]:
    """What waits to be posted, in `month` or in any, of which `limit` are listed: what `status` counts as late."""
    rows = connection.execute(_UNREAD, unread_bounds(connection) | {"month": month and month.first_day, "limit": limit})
    return tuple(
        LateMoney(
            row.external_ref, Month.of_day(row.month), Month.of_day(row.posted_in), row.currency, row.exponent,
            row.movements, int(row.amount), row.altogether,
        )
        for row in rows
    )  # fmt: skip


def late_adjustments(connection: Connection, month: Month | None = None, limit: int = 100) -> LateAdjustments:
    """The adjustments posted in `month`, or in any month, of which `limit` are listed."""
    return _listed(connection, month, None, limit)


def late_in_pass(connection: Connection, settlement: Pass, limit: int = 100) -> LateAdjustments:
    """The adjustments that one pass posted, of which `limit` are listed."""
    return _listed(connection, settlement.month, settlement.number, limit)


def _listed(connection: Connection, month: Month | None, number: int | None, limit: int) -> LateAdjustments:
    day = None if month is None else month.first_day
    rows = connection.execute(_ADJUSTMENTS, {"month": day, "pass": number, "limit": limit}).all()
    listed = tuple(
        LateAdjustment(
            row.external_ref, row.name, row.currency, row.exponent, Month.of_day(row.month),
            Month.of_day(row.origin_month), int(row.old), int(row.old) + row.net, row.posted_at,
        )
        for row in rows
    )  # fmt: skip
    return LateAdjustments(listed, rows[0].adjustments if rows else 0)


# Nothing is posted into a closed month any more: the first after all of them takes it in.
_UNREAD = text(f"""
    WITH {UNREAD}, open_month AS (
        SELECT max(CAST(month + interval '1 month' AS date)) AS month
        FROM settlement_period WHERE state IN ('CLOSING', 'CLOSED')
    ), waiting AS (
        SELECT organization_id, unread.month, greatest(unread.month, open_month.month) AS posted_in, currency,
            count(*) AS movements, sum(amount) AS amount
        FROM unread CROSS JOIN open_month
        GROUP BY organization_id, unread.month, open_month.month, currency
    )
    SELECT external_ref, waiting.*, exponent, count(*) OVER () AS altogether
    FROM waiting
    JOIN organization ON organization.id = organization_id
    JOIN currency ON code = waiting.currency
    WHERE CAST(:month AS date) IS NULL OR posted_in = CAST(:month AS date)
    ORDER BY waiting.month DESC, organization_id, waiting.currency
    LIMIT CAST(:limit AS bigint)
""")

# A currency that nobody had moved money in, and an organization that was parked, have their first entry late.
_ADJUSTMENTS = text("""
    WITH first_pass AS (
        SELECT month AS settled_month, min(pass) AS number FROM settlement_pass WHERE state = 'DONE' GROUP BY month
    ), adjustment AS (
        SELECT organization_id, currency, month, origin_month, sequence, net, posted_at,
            count(*) OVER () AS adjustments
        FROM ledger_entry LEFT JOIN first_pass ON settled_month = month
        WHERE (origin_month < month OR sequence > 0 OR (settlement_pass > first_pass.number AND net <> 0))
            AND (CAST(:month AS date) IS NULL OR month = CAST(:month AS date))
            AND (CAST(:pass AS integer) IS NULL OR settlement_pass = CAST(:pass AS integer))
        ORDER BY month DESC, organization_id, origin_month, currency, sequence
        LIMIT CAST(:limit AS bigint)
    )
    SELECT adjustment.*, external_ref, name, exponent, (
            SELECT coalesce(sum(earlier.net), 0) FROM ledger_entry AS earlier
            WHERE earlier.organization_id = adjustment.organization_id AND earlier.currency = adjustment.currency
                AND earlier.month = ANY (
                    SELECT period.month FROM settlement_period AS period
                    WHERE period.month BETWEEN adjustment.origin_month AND adjustment.month)
                AND earlier.origin_month = adjustment.origin_month
                AND (earlier.month, earlier.sequence) < (adjustment.month, adjustment.sequence)
        ) AS old
    FROM adjustment
    JOIN organization ON organization.id = organization_id
    JOIN currency ON code = adjustment.currency
    ORDER BY month DESC, organization_id, origin_month, adjustment.currency, sequence
""")
