"""A provider's list of payments against our payouts: what a restored backup or a promoted standby no longer knows.

Nothing is changed. What is not asked for here yet is asked for again under the same reference, and answered as before.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection, Row

from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.errors import InvalidInput
from ticketflow_orch.formatting.money import written_out
from ticketflow_orch.months import Month
from ticketflow_orch.payouts.model import PayoutState

_STATUSES = {"confirmed", "rejected"}
_WAITS = {PayoutState.REQUESTED, PayoutState.HELD, PayoutState.IN_DOUBT}


@dataclass(frozen=True, slots=True)
class Listed:
    """What a provider says of one payment; `amount` in minor units, `status` confirmed or rejected."""

    reference: UUID
    currency: str
    amount: int
    status: str


@dataclass(frozen=True, slots=True)
class Difference:
    """Where the provider's list and our payouts do not agree; `what` it is and what to do, in words."""

    reference: UUID
    organization: str
    month: Month | None
    what: str


def read_listed(lines: Iterable[str]) -> Iterator[Listed]:
    """The payments of a list that has a JSON object a line, with the names that a provider's answers have.

    Raises:
        InvalidInput: a line is none; it is named by its number.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            said = json.loads(line)
            listed = Listed(UUID(said["reference"]), str(said["currency"]), int(said["amount"]), str(said["status"]))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InvalidInput(
                f"Line {number} is no payment ({type(error).__name__}: {error}); write each as an object with "
                "reference, currency, amount in minor units, and status."
            ) from None
        if listed.status not in _STATUSES:
            raise InvalidInput(f"Line {number} has the status {listed.status!r}; write confirmed or rejected.")
        yield listed


def compare(connection: Connection, listed: Iterable[Listed], complete: Month | None = None) -> Iterator[Difference]:
    """Where `listed` and our payouts do not agree; of `complete` the list has all, so what it lacks is named too."""
    known = list(listed)
    times = Counter(one.reference for one in known if one.status == "confirmed")
    given = {
        "references": [one.reference for one in known],
        "complete": None if complete is None else complete.first_day,
    }
    ours = {row.reference: row for row in connection.exec_driver_sql(_FOUND, given)}
    for one in {one.reference: one for one in known}.values():
        row = ours.pop(one.reference, None)
        what = _what(one, row, times[one.reference])
        if what is not None:
            yield _difference(one.reference, row, what)
    for reference, row in ours.items():
        if row.state == PayoutState.CONFIRMED and complete is not None and Month.of_day(row.month) == complete:
            yield _difference(reference, row, "is confirmed here and not in the list: ask the provider")


def _what(one: Listed, row: Row[tuple[object, ...]] | None, times: int) -> str | None:
    if times > 1:
        return f"was paid {times} times: have all but one taken back"
    if row is None:
        return f"{one.status} there and unknown here: its month's closing was lost; close that month before others are"
    if row.state is None:
        return f"{one.status} there and not asked for here: the next run of payouts asks under the same reference"
    return _disagreement(one, row)


def _disagreement(one: Listed, row: Row[tuple[object, ...]]) -> str | None:
    if (one.currency, one.amount) != (row.currency, row.amount):
        exact = f"{written_out(row.amount, row.exponent)} {row.currency}"
        return f"{one.amount} minor units of {one.currency} there, {exact} here: enter the difference as MANUAL"
    if row.state in _WAITS:
        return f"{one.status} there and {row.state} here: the relay asks again, or `ticketflow payouts resolve`"
    if one.status == "confirmed" and row.state == PayoutState.REJECTED:
        return "confirmed there and REJECTED here: it was paid, and its money is in a balance again"
    if one.status == "rejected" and row.state == PayoutState.CONFIRMED:
        return "rejected there and CONFIRMED here: return it with `ticketflow payouts return`"
    return None


def _difference(reference: UUID, row: Row[tuple[object, ...]] | None, what: str) -> Difference:
    if row is None:
        return Difference(reference, "", None, what)
    return Difference(reference, row.organization, Month.of_day(row.month), what)


_FOUND = sql(__file__, "found")
