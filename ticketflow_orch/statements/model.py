"""What is in a statement: the closed balance of an organization in one currency, and everything it is made of.

Amounts are minor units of the statement's currency, instants aware UTC. A statement is about the months since the
organization's statements before it: one month, as a rule, and more for one that was parked. What it says about still
earlier months are adjustments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from datetime import datetime

from ticketflow_orch.db.errors import in_words
from ticketflow_orch.jobs.batches import BadRow
from ticketflow_orch.months import Month


class UnbalancedStatementError(RuntimeError):
    """A statement does not add up to what is in the books; nothing is printed. The message says what differs."""


class StatementsLeftOutError(RuntimeError):
    """Statements could not be made, because of what is in them; all others are written. The message names them."""


@dataclass(frozen=True, slots=True)
class Amounts:
    """The amounts of the ledger; `fees` are fees and manual entries, `chargebacks` include their reversals."""

    captures: int = 0
    refunds: int = 0
    chargebacks: int = 0
    fees: int = 0
    commission: int = 0
    commission_tax: int = 0

    @property
    def base(self) -> int:
        """The movements themselves, on which commission is counted."""
        return self.captures + self.refunds + self.chargebacks + self.fees

    @property
    def net(self) -> int:
        """What is left of the movements after commission and the tax on it."""
        return self.base - self.commission - self.commission_tax


def total(parts: Iterable[Amounts]) -> Amounts:
    """The sum of `parts`, amount by amount."""
    added = list(parts)
    return Amounts(**{one.name: sum(getattr(part, one.name) for part in added) for one in fields(Amounts)})


@dataclass(frozen=True, slots=True)
class Line:
    """The movements about the month `origin` at one rate (basis points); commission and tax are rounded once, here.

    Of a month whose statement was issued before, a line is what has changed since.
    """

    origin: Month
    commission_rate_bps: int
    commission_tax_bps: int
    amounts: Amounts


@dataclass(frozen=True, slots=True)
class Origin:
    """What the ledger says about the month `origin`; `starts_at` is its beginning in the organization's zone."""

    month: Month
    starts_at: datetime
    amounts: Amounts


@dataclass(frozen=True, slots=True)
class ReturnedPayout:
    """A payout of the month `month` that came back, and why."""

    month: Month
    amount: int
    reason: str


@dataclass(frozen=True, slots=True)
class Movement:
    """One movement behind the statement. `reverses` is the reference of what it takes back or voids."""

    external_ref: str
    kind: str
    is_void: bool
    reverses: str | None
    amount: int
    reason: str | None
    occurred_at: datetime


@dataclass(frozen=True, slots=True)
class Party:
    """Whom a statement is for, as its organization stands in the books. `locale` may be anything."""

    id: int
    external_ref: str
    name: str
    timezone: str
    locale: str | None
    contact_email: str | None


@dataclass(frozen=True, slots=True)
class Statement:
    """The closed `month` of one organization and currency, but for its movements, of which there may be very many.

    `settled_elsewhere`: what is about months before `payouts_from`, the first that the organization is paid for (None:
    payouts were off); a balance from before that was kept has no part in it, which `knows_history` says. `last_stated`
    is the last month before it in which the organization has statements, in whatever currency; None when these are its
    first. `exponent` is the currency's number of decimals. The window is the month's own, in the organization's zone.
    """

    party: Party
    month: Month
    last_stated: Month | None
    currency: str
    exponent: int
    month_starts_at: datetime
    ends_at: datetime
    opening: int
    net: int
    returned: int
    due: int
    payable: int
    closing: int
    settled_elsewhere: int
    payouts_from: Month | None
    knows_history: bool
    origins: tuple[Origin, ...]
    lines: tuple[Line, ...]
    returns: tuple[ReturnedPayout, ...]

    @property
    def key(self) -> tuple[int, str]:
        """What distinguishes it from the other statements of the month."""
        return self.party.id, self.currency

    @property
    def not_paid_here(self) -> bool:
        """Whether something is carried on that is not paid whatever it comes to, since payouts begin later."""
        paid = self.payouts_from is not None and self.month >= self.payouts_from
        return self.knows_history and self.closing > 0 and not paid

    @property
    def starts_at(self) -> datetime:
        """From when on it covers what happened."""
        return min(
            (origin.starts_at for origin in self.origins if self._covers(origin.month)), default=self.month_starts_at
        )

    @property
    def caught_up(self) -> tuple[Month, ...]:
        """The months before its own that it covers too, since no earlier statement does."""
        return tuple(o.month for o in self.origins if self._covers(o.month) and o.month < self.month)

    @property
    def own(self) -> Amounts:
        """What the months that it covers came to."""
        return total(origin.amounts for origin in self.origins if self._covers(origin.month))

    @property
    def adjustments(self) -> Amounts:
        """What was posted in these months about months that earlier statements cover."""
        return total(origin.amounts for origin in self.origins if not self._covers(origin.month))

    @property
    def own_lines(self) -> tuple[Line, ...]:
        """The lines of the months that it covers."""
        return tuple(line for line in self.lines if self._covers(line.origin))

    @property
    def adjusted_lines(self) -> tuple[Line, ...]:
        """The changes in months that earlier statements cover."""
        return tuple(line for line in self.lines if not self._covers(line.origin))

    def _covers(self, origin: Month) -> bool:
        return self.last_stated is None or origin > self.last_stated


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A statement that cannot be made, and why in a sentence; no `currency`: none of the organization's can be."""

    organization_id: int
    organization: str
    currency: str
    why: str

    def row(self, month: Month) -> BadRow:
        """What is alerted and named of it."""
        return BadRow(f"{month} {self.organization} {self.currency}".rstrip(), self.why)

    @classmethod
    def because(cls, error: Exception, statement: Statement) -> LeftOut:
        """`statement`, left out for what `error` says."""
        why = in_words(error)
        if not isinstance(error, UnbalancedStatementError):
            why = f"{_called(statement)} cannot be made: {why.rstrip('.')}."
        return cls(statement.party.id, statement.party.external_ref, statement.currency, why)

    @classmethod
    def altogether(cls, error: Exception, organization_id: int, organization: str, month: Month) -> LeftOut:
        """All statements of an organization, left out for what `error` says."""
        why = f"No statement of {organization} for {month} can be made or mailed: {in_words(error).rstrip('.')}."
        return cls(organization_id, organization, "", why)


def must_add_up(statement: Statement) -> None:
    """Refuse a statement whose lines, ledger entries, returned payouts and balance are not the same to the cent.

    Raises:
        UnbalancedStatementError: they are not; names organization, month, currency and the two sums.
    """
    by_lines: dict[Month, list[Amounts]] = {}
    for line in statement.lines:
        by_lines.setdefault(line.origin, []).append(line.amounts)
    posted = {origin.month: origin.amounts for origin in statement.origins}
    for origin in sorted(by_lines.keys() | posted):
        recomputed = total(by_lines.get(origin, ()))
        if recomputed != (entered := posted.get(origin, Amounts())):
            raise _unbalanced(statement, f"its lines about {origin} come to {recomputed}, the ledger to {entered}")
    net = statement.own.net + statement.adjustments.net
    if net != statement.net:
        raise _unbalanced(statement, f"the ledger's net is {net}, the balance's {statement.net}")
    returned = sum(payout.amount for payout in statement.returns)
    if returned != statement.returned:
        raise _unbalanced(statement, f"its returned payouts come to {returned}, the balance says {statement.returned}")
    due = statement.opening + statement.net + statement.returned - statement.settled_elsewhere
    if due != statement.due:
        raise _unbalanced(statement, f"its parts come to {due}, the balance says {statement.due}")


_KINDS = {
    "CAPTURE": "captures", "REFUND": "refunds", "CHARGEBACK": "chargebacks", "CHARGEBACK_REVERSAL": "chargebacks",
    "FEE": "fees", "MANUAL": "fees",
}  # fmt: skip


@dataclass(slots=True)
class KindsOfMovements:
    """Number and sum of the movements of each kind, counted while they pass by."""

    counts: dict[str, int] = field(default_factory=dict)
    sums: dict[str, int] = field(default_factory=dict)

    def counting(self, movements: Iterable[Movement]) -> Iterator[Movement]:
        """The same movements, each counted as it passes."""
        for movement in movements:
            self.counts[movement.kind] = self.counts.get(movement.kind, 0) + 1
            self.sums[movement.kind] = self.sums.get(movement.kind, 0) + movement.amount
            yield movement

    def must_match(self, statement: Statement) -> None:
        """Refuse a statement whose movements are not what its ledger entries say.

        Raises:
            UnbalancedStatementError: they are not.
        """
        found = dict.fromkeys(_KINDS.values(), 0)
        for kind, amount in self.sums.items():
            found[_KINDS[kind]] += amount
        own, adjusted = statement.own, statement.adjustments
        for column, amount in found.items():
            posted = getattr(own, column) + getattr(adjusted, column)
            if amount != posted:
                raise _unbalanced(statement, f"its movements come to {column} of {amount}, the ledger to {posted}")


def _unbalanced(statement: Statement, fault: str) -> UnbalancedStatementError:
    return UnbalancedStatementError(
        f"{_called(statement)} does not add up: {fault}; see "
        f"`ticketflow explain {statement.party.external_ref} {statement.month}`."
    )


def _called(statement: Statement) -> str:
    return f"The statement of {statement.party.external_ref} for {statement.month} in {statement.currency}"
