"""What the ledger must come to, worked out a second time: plain Python, exact fractions, a movement at a time.

Shares nothing with the settlement but the zone files: no windows, no SQL, no sums before they are needed.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from random import Random

from sqlalchemy import Connection, Engine, text

from ticketflow_orch.months import zone

AMOUNTS = ("captures", "refunds", "chargebacks", "fees", "commission", "commission_tax", "net")
_COLUMN_OF = {
    "CAPTURE": "captures", "REFUND": "refunds", "CHARGEBACK": "chargebacks", "CHARGEBACK_REVERSAL": "chargebacks",
    "FEE": "fees", "MANUAL": "fees",
}  # fmt: skip

# Organization, month as YYYY-MM, currency.
Key = tuple[int, str, str]


@dataclass(frozen=True, slots=True)
class Movement:
    """A money movement; rates in basis points. In the database its reference is recorded-`id`, its id another."""

    id: int
    organization_id: int
    kind: str
    currency: str
    amount: int
    commission_rate_bps: int
    commission_tax_bps: int
    occurred_at: datetime
    is_void: bool = False
    reverses_id: int | None = None


def amounts(movements: Iterable[Movement], zones: Mapping[int, str]) -> dict[Key, tuple[int, ...]]:
    """What the movements come to by key, in the order of `AMOUNTS`; `zones` names each organization's time zone."""
    columns: dict[Key, dict[str, int]] = defaultdict(lambda: dict.fromkeys(AMOUNTS, 0))
    lines: dict[tuple[Key, int, int], Fraction] = defaultdict(Fraction)
    for movement in movements:
        month = f"{movement.occurred_at.astimezone(zone(zones[movement.organization_id])):%Y-%m}"
        key = (movement.organization_id, month, movement.currency)
        columns[key][_COLUMN_OF[movement.kind]] += movement.amount
        rate = Fraction(movement.commission_rate_bps, 10_000)
        lines[key, movement.commission_rate_bps, movement.commission_tax_bps] += movement.amount * rate
    for (key, _, tax_bps), exact in lines.items():
        commission = half_up(exact)
        columns[key]["commission"] += commission
        columns[key]["commission_tax"] += half_up(commission * Fraction(tax_bps, 10_000))
    for sums in columns.values():
        gross = sums["captures"] + sums["refunds"] + sums["chargebacks"] + sums["fees"]
        sums["net"] = gross - sums["commission"] - sums["commission_tax"]
    return {key: tuple(sums.values()) for key, sums in columns.items()}


def expected(engine: Engine) -> dict[Key, tuple[int, ...]]:
    """What all movements in the database come to, by the keys under which money moved."""
    with engine.connect() as connection:
        zones = {row.id: row.timezone for row in connection.execute(text("SELECT id, timezone FROM organization"))}
        columns = ", ".join(field.name for field in fields(Movement))
        movements = [
            Movement(**row._mapping) for row in connection.execute(text(f"SELECT {columns} FROM money_movement"))
        ]
    return without_zeros(amounts(movements, zones))


def half_up(exact: Fraction) -> int:
    """To the nearest whole number, a half away from zero."""
    magnitude = int(abs(exact) + Fraction(1, 2))
    return magnitude if exact >= 0 else -magnitude


def posted(engine: Engine) -> dict[Key, tuple[int, ...]]:
    """What the ledger says by organization, origin month and currency: settlement and adjustments together."""
    sums = ", ".join(f"sum({name})" for name in AMOUNTS)
    with engine.connect() as connection:
        rows = connection.execute(
            text(f"""
                SELECT organization_id, to_char(origin_month, 'YYYY-MM'), currency, {sums}
                FROM ledger_entry GROUP BY 1, 2, 3
            """)
        )
        return {(row[0], row[1], row[2]): tuple(int(value) for value in row[3:]) for row in rows}


def without_zeros(by_key: Mapping[Key, tuple[int, ...]]) -> dict[Key, tuple[int, ...]]:
    """Only the keys under which money moved: idle organizations have rows in the ledger and no movements."""
    return {key: sums for key, sums in by_key.items() if any(sums)}


def record(engine: Engine, movements: Sequence[Movement]) -> None:
    """Write the movements as the application would, in one transaction."""
    with engine.begin() as connection:
        write(connection, movements)


def write(connection: Connection, movements: Sequence[Movement]) -> None:
    """Write the movements in the transaction that is open."""
    connection.execute(
        text("""
            INSERT INTO money_movement (external_ref, organization_id, kind, is_void, reverses_id, currency,
                amount, commission_rate_bps, commission_tax_bps, reason, occurred_at)
            VALUES ('recorded-' || CAST(:id AS bigint), :organization_id, CAST(:kind AS text), :is_void,
                (SELECT id FROM money_movement WHERE external_ref = 'recorded-' || CAST(:reverses_id AS bigint)),
                :currency, :amount, :commission_rate_bps, :commission_tax_bps,
                CASE WHEN CAST(:kind AS text) IN ('FEE', 'MANUAL') THEN 'as agreed' END, :occurred_at)
        """),
        [asdict(movement) for movement in movements],
    )


class Business:
    """Organizations at work: makes random movements, each lawful after those made before it."""

    def __init__(
        self,
        random: Random,
        organizations: Sequence[int],
        *,
        since: datetime,
        until: datetime,
        largest: int = 1_000_000,
        ids: Iterable[int] | None = None,
    ) -> None:
        self._random = random
        self._organizations = organizations
        self._since = since
        self._seconds = int((until - since).total_seconds())
        self._largest = largest
        self._ids = iter(ids or itertools.count(1))
        self._captures: list[Movement] = []
        self._chargebacks: list[Movement] = []
        self._voidable: list[Movement] = []

    def movements(self, count: int) -> list[Movement]:
        """The next `count` movements."""
        return [self._movement() for _ in range(count)]

    def _movement(self) -> Movement:
        kind = self._random.choices(
            ["CAPTURE", "REFUND", "CHARGEBACK", "CHARGEBACK_REVERSAL", "FEE", "MANUAL", "void"],
            [8, 4, 2, 1, 1, 1, 2],
        )[0]
        if kind == "void" and self._voidable:
            return self._void(self._voidable.pop(self._random.randrange(len(self._voidable))))
        if kind in {"REFUND", "CHARGEBACK"} and self._captures:
            made = self._reversal(kind, self._random.choice(self._captures), -1)
        elif kind == "CHARGEBACK_REVERSAL" and self._chargebacks:
            made = self._reversal(kind, self._random.choice(self._chargebacks), 1)
        elif kind in {"FEE", "MANUAL"}:
            sign = -1 if kind == "FEE" else self._random.choice([-1, 1])
            made = replace(self._capture(), kind=kind, commission_rate_bps=0, commission_tax_bps=0)
            made = replace(made, amount=sign * made.amount)
        else:
            made = self._capture()
        self._voidable.append(made)
        if made.kind == "CAPTURE":
            self._captures.append(made)
        elif made.kind == "CHARGEBACK":
            self._chargebacks.append(made)
        return made

    def _capture(self) -> Movement:
        return Movement(
            id=next(self._ids),
            organization_id=self._random.choice(self._organizations),
            kind="CAPTURE",
            currency=self._random.choice(["EUR", "EUR", "JPY", "KWD"]),
            amount=self._amount(),
            commission_rate_bps=self._random.choice([0, 1, 333, 1000, 1250, 9999, 10_000]),
            commission_tax_bps=self._random.choice([0, 700, 2000, 2000, 10_000]),
            occurred_at=self._instant(),
        )

    def _reversal(self, kind: str, target: Movement, sign: int) -> Movement:
        commission_kept = self._random.random() < 0.2
        return replace(
            target,
            id=next(self._ids),
            kind=kind,
            amount=sign * self._random.choice([abs(target.amount), self._amount()]),
            commission_rate_bps=0 if commission_kept else target.commission_rate_bps,
            occurred_at=self._instant(),
            reverses_id=target.id,
        )

    def _void(self, target: Movement) -> Movement:
        return replace(target, id=next(self._ids), amount=-target.amount, is_void=True, reverses_id=target.id)

    def _amount(self) -> int:
        # As often tiny as huge: halves to round are found among the tiny.
        return self._random.choice([self._random.randint(1, 60), self._random.randint(1, self._largest)])

    def _instant(self) -> datetime:
        moment = self._since + timedelta(seconds=self._random.randrange(self._seconds))
        return moment.astimezone(UTC) + timedelta(microseconds=self._random.choice([0, 1, 999_999]))
