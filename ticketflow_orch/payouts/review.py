"""The review bound: payouts far above those of the last months wait for a person before they are sent.

What holds a payout for other reasons is in `request`; how it is released, in `actions`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from sqlalchemy import Connection

from ticketflow_orch.closing.history import pays_from_of
from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.formatting.money import written_out
from ticketflow_orch.months import Month
from ticketflow_orch.outbox.alerts import Alert, alert_once

HELD_FOR_REVIEW = "PayoutsHeldForReview"
# How many of the last months with payouts a month is compared with.
COMPARED = 3


@dataclass(frozen=True, slots=True)
class CurrencyReview:
    """What a month pays in a currency, beside the greatest of the last months (minor units; None: there is none).

    `held_before`: an earlier look at the month had its payouts held, which stands whatever changed since.
    """

    month: Month
    currency: str
    exponent: int
    payouts: int
    total: int
    greatest: int | None
    held_before: bool

    def exceeds(self, factor: Decimal, *, hold_first: bool) -> bool:
        """Whether a person is to look at it first: above `factor` times the greatest, or the first of its currency."""
        return hold_first if self.greatest is None else self.total > factor * self.greatest

    @property
    def reason(self) -> str:
        """Why its payouts are held, for people."""
        total = f"{written_out(self.total, self.exponent)} {self.currency}"
        if self.greatest is None:
            return f"review: {total} in {self.month}, the first payouts of the currency"
        return f"review: {total} in {self.month} after at most {written_out(self.greatest, self.exponent)} a month"


def review(
    connection: Connection, month: Month, factor: Decimal, now: datetime, *, hold_first: bool
) -> tuple[tuple[CurrencyReview, ...], tuple[CurrencyReview, ...]]:
    """What `month` pays per currency, and which of it is to be held; each hold is alerted once.

    The greatest of the last months, and not their mean: a season's peak passes, a wrong factor of ten does not. The
    first payouts of a currency have nothing to compare with; that anybody is paid at all was a person's word already,
    in `payouts from`, so they are held only where the settings say so.

    Once held a month's currency stays held: a run that was killed half-way leaves no half of it to be decided anew.
    """
    reviews = tuple(
        CurrencyReview(
            month, row.currency, row.exponent, row.payouts, int(row.total), _whole(row.greatest), row.held_before
        )
        for row in connection.exec_driver_sql(
            _REVIEW, {"month": month.first_day, "kind": HELD_FOR_REVIEW, "key": f"{month} ", "compared": COMPARED}
        )
    )
    held = tuple(one for one in reviews if one.held_before or one.exceeds(factor, hold_first=hold_first))
    for one in held:
        payload = {
            "month": str(month), "currency": one.currency, "payouts": one.payouts, "amount": one.total,
            "greatest": one.greatest, "reason": one.reason,
        }  # fmt: skip
        alert_once(connection, Alert(HELD_FOR_REVIEW, f"{month} {one.currency}", payload), now)
    return reviews, held


def _whole(total: Decimal | None) -> int | None:
    return None if total is None else int(total)


_REVIEW = sql(__file__, "review", pays_from=pays_from_of("organization_id"))
