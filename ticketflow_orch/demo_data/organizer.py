"""The life of one made-up organizer, as rows of the import format."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from random import Random

from ticketflow_orch.demo_data.world import FIRST_NAMES, GENRES, LAST_NAMES, PLACES, RATES, WORDS
from ticketflow_orch.importing.format import EVENTS, KINDS, MONEY_MOVEMENTS, ORGANIZATIONS, RESERVATIONS, Kind
from ticketflow_orch.months import Month, months_between, zone

# Cells in the order of the kind's columns.
Row = tuple[str, ...]

_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400
# Coprime to the number of different names, so that neighbours differ and no name comes twice too early.
_STRIDE = 1_237

# What becomes of a reservation, and of a sale, in how many of a thousand cases.
_OUTCOMES = {"paid": 870, "given up": 110, "taken back": 20}
_AFTERMATHS = {"none": 950, "refund": 30, "refund of one ticket": 10, "dispute": 6, "charged twice": 4}


@dataclass(frozen=True, slots=True)
class _Event:
    ref: str
    status: str
    starts: int
    price: int
    cancelled: int | None


@dataclass(frozen=True, slots=True)
class _Capture:
    """Money that came in: what later movements reverse, and the rates they carry."""

    ref: str
    reservation_ref: str
    amount: int
    rates: tuple[int, int]
    at: int


class Organizer:
    """Organizer `number` (from 0) from `first` to `last` month. Instants are epoch seconds, money is minor units.

    Nothing happens after the last month is over where the organizer lives; events may lie ahead of it.
    """

    def __init__(self, number: int, first: Month, last: Month, draw: Random) -> None:
        self._draw = draw
        self._months = list(months_between(first, last))
        self._ref = f"demo-{number + 1:05d}"
        names = len(PLACES) * len(GENRES) * len(WORDS)
        choice, place = divmod(number * _STRIDE % names, len(PLACES))
        word, genre = divmod(choice, len(GENRES))
        self._place, self._genre = PLACES[place], GENRES[genre]
        self._name = f"{WORDS[word]} {draw.choice(self._genre.venues)}, {self._place.city}"
        if number >= names:
            self._name += f" {number // names + 1}"
        self._begin = self._epoch(first.window(self._place.timezone).starts_at)
        self._end = self._epoch(last.window(self._place.timezone).ends_at)
        self._joined, self._left = self._membership()
        self._from = max(self._begin, self._midnight(self._joined))
        self._until = self._end if self._left is None else min(self._end, self._midnight(self._left))
        self._rate = draw.choice(RATES)
        self._earlier_rate = draw.choice(RATES) if self._happens(15) else self._rate
        self._rate_changed = self._epoch(draw.choice(self._months).window(self._place.timezone).starts_at)
        self._keeps_commission = self._happens(15)
        self._rows: dict[Kind, list[Row]] = {kind: [] for kind in KINDS}

    def live(self, reservations: int) -> dict[Kind, list[Row]]:
        """Everything that happens to an organizer who sells about that many reservations."""
        left = "" if self._left is None else self._left.isoformat()
        self._rows[ORGANIZATIONS].append((
            self._ref, self._name, self._place.timezone, self._place.currency, str(self._rate),
            str(self._place.tax_bps), self._joined.isoformat(), left, f"office@{self._ref}.example", self._place.locale,
            "",
        ))  # fmt: skip
        number = 0
        while reservations > 0:
            number += 1
            sales = min(reservations, self._draw.randint(4, 40))
            self._put_on(f"{self._ref}-{number:03d}", sales)
            reservations -= sales
        self._be_charged()
        return self._rows

    def _membership(self) -> tuple[date, date | None]:
        """When the organizer joined, mostly long ago, and left, mostly not yet."""
        first_day, days = self._months[0].first_day, len(self._months) * 30
        if self._happens(12):
            return first_day + timedelta(self._draw.randrange(days)), None
        joined = first_day - timedelta(self._draw.randint(1, 2_000))
        return joined, first_day + timedelta(self._draw.randrange(days // 2, days)) if self._happens(8) else None

    def _put_on(self, ref: str, sales: int) -> None:
        """One event with up to that many reservations; none when its date lies outside the organizer's time."""
        draw, genre = self._draw, self._genre
        starts = self._evening()
        ends = starts + genre.hours * _HOUR
        if starts < self._from + _DAY or (self._left is not None and ends > self._until):
            return
        status, cancelled = "CLOSED" if ends < self._end else "OPEN", None
        if self._happens(4):
            day = starts - draw.randint(5, 20) * _DAY
            if self._from < day < self._end:
                status, cancelled = "CANCELLED", day
        elif status == "OPEN" and self._happens(6):
            status, sales = "DRAFT", 0
        step = self._place.step
        price = self._place.price * genre.price_percent * draw.randint(60, 160) // 10_000 // step * step
        self._rows[EVENTS].append((
            ref, self._ref, draw.choice(genre.titles), status, _iso(starts), _iso(ends), self._place.timezone,
            self._name,
        ))  # fmt: skip
        event = _Event(ref, status, starts, max(price, step), cancelled)
        for number in range(1, sales + 1):
            self._reserve(event, f"{ref}-{number:03d}")

    def _evening(self) -> int:
        """When an event begins: in the genre's season, up to two months ahead of the last month."""
        ahead = [*self._months, self._months[-1].next(), self._months[-1].next().next()]
        month = self._draw.choices(ahead, [self._genre.season[month.number - 1] for month in ahead])[0]
        day = month.first_day + timedelta(self._draw.randrange((month.next().first_day - month.first_day).days))
        minute, home = self._draw.choice((0, 0, 30)), zone(self._place.timezone)
        return self._epoch(datetime(day.year, day.month, day.day, self._genre.hour, minute, tzinfo=home))

    def _reserve(self, event: _Event, ref: str) -> None:
        draw = self._draw
        created = event.starts - _HOUR - draw.randrange(draw.choice((3, 14, 45, 90)) * _DAY)
        if created < self._from:
            created = draw.randrange(self._from, event.starts - _HOUR)
        if created >= min(self._until, event.cancelled or self._until):
            return
        quantity = draw.choice((1, 1, 2, 2, 2, 2, 3, 4, 4, 6))
        expires = created + 15 * _MINUTE
        paying, confirmed = "", ""
        outcome = self._one_of(_OUTCOMES)
        if event.status == "OPEN" and self._happens(6):
            # Held for somebody who pays by invoice.
            status, expires = "ACTIVE", max(expires, min(event.starts - _DAY, self._end + draw.randint(3, 40) * _DAY))
        elif expires >= self._until:
            if event.status != "OPEN":
                return
            status = "ACTIVE"
        elif outcome == "given up":
            status = "EXPIRED"
        elif outcome == "taken back":
            status = "CANCELLED"
        else:
            paid = created + draw.randint(2 * _MINUTE, 14 * _MINUTE)
            paying, confirmed = _iso(paid - draw.randint(15, 90)), _iso(paid)
            status = self._take_money(event, ref, event.price * quantity, quantity, paid)
        buyer = f"{draw.choice(FIRST_NAMES)}.{draw.choice(LAST_NAMES)}{draw.randint(1, 99)}@example.com"
        self._rows[RESERVATIONS].append((
            ref, event.ref, buyer, str(quantity), status, _iso(created), _iso(expires), confirmed, paying,
        ))  # fmt: skip

    def _take_money(self, event: _Event, ref: str, amount: int, quantity: int, at: int) -> str:
        """Capture, and what may come of it; returns the state in which the reservation ends up."""
        draw = self._draw
        capture = _Capture(f"{ref}-capture", ref, amount, self._rates(at), at)
        self._move(capture.ref, "CAPTURE", amount, at, rates=capture.rates, reservation_ref=ref)
        if event.cancelled is not None:
            refunded = self._refund(capture, amount, max(at, event.cancelled) + draw.randint(_HOUR, 3 * _DAY))
            return "CANCELLED" if refunded else "CONFIRMED"
        aftermath = self._one_of(_AFTERMATHS)
        if aftermath == "refund":
            refunded = self._refund(capture, amount, at + draw.randint(_DAY, 60 * _DAY))
            return "CANCELLED" if refunded else "CONFIRMED"
        if aftermath == "refund of one ticket" and quantity > 1:
            self._refund(capture, amount // quantity, at + draw.randint(_DAY, 60 * _DAY))
        elif aftermath == "dispute":
            self._dispute(capture)
        elif aftermath == "charged twice":
            # Charged twice by mistake, which a void takes back.
            self._move(f"{ref}-again", "CAPTURE", amount, at + 2, rates=capture.rates, reservation_ref=ref)
            self._move(
                f"{ref}-again-void", "CAPTURE", -amount, at + 2,
                rates=capture.rates, reservation_ref=ref, reverses_ref=f"{ref}-again", is_void=True,
            )  # fmt: skip
        return "CONFIRMED"

    def _refund(self, capture: _Capture, amount: int, at: int) -> bool:
        rates = (0, 0) if self._keeps_commission else capture.rates
        return self._reverse(capture, "refund", "REFUND", at, amount=-amount, target=capture.ref, rates=rates)

    def _dispute(self, capture: _Capture) -> None:
        """A chargeback; the organizer wins some of them."""
        at = capture.at + self._draw.randint(20 * _DAY, 55 * _DAY)
        charged = self._reverse(
            capture, "chargeback", "CHARGEBACK", at, amount=-capture.amount, target=capture.ref, rates=capture.rates
        )
        if charged and self._happens(40):
            won = at + self._draw.randint(15 * _DAY, 45 * _DAY)
            target = f"{capture.reservation_ref}-chargeback"
            self._reverse(
                capture, "won", "CHARGEBACK_REVERSAL", won, amount=capture.amount, target=target, rates=capture.rates
            )

    def _reverse(
        self, capture: _Capture, suffix: str, kind: str, at: int, *, amount: int, target: str, rates: tuple[int, int]
    ) -> bool:
        """A movement about an earlier one. Whether it came to that before the last month was over."""
        if at >= self._end:
            return False
        ref = capture.reservation_ref
        self._move(f"{ref}-{suffix}", kind, amount, at, rates=rates, reservation_ref=ref, reverses_ref=target)
        return True

    def _be_charged(self) -> None:
        """What the platform charges or grants by hand, on the last evening of a month."""
        rents = self._happens(20)
        for month in self._months:
            at = self._epoch(month.window(self._place.timezone).ends_at) - 2 * _HOUR
            if not self._from <= at < self._until:
                continue
            if rents:
                ref = f"{self._ref}-scanners-{month}"
                self._move(ref, "FEE", -2 * self._place.price, at, reason=f"Ticket scanners, {month}")
            if self._happens(1):
                amount = self._place.price * self._draw.choice((-1, 1, 2))
                self._move(f"{self._ref}-manual-{month}", "MANUAL", amount, at, reason="Agreed with support by phone")

    def _rates(self, at: int) -> tuple[int, int]:
        return self._earlier_rate if at < self._rate_changed else self._rate, self._place.tax_bps

    def _move(
        self,
        ref: str,
        kind: str,
        amount: int,
        at: int,
        *,
        rates: tuple[int, int] = (0, 0),
        reservation_ref: str = "",
        reverses_ref: str = "",
        is_void: bool = False,
        reason: str = "",
    ) -> None:
        self._rows[MONEY_MOVEMENTS].append((
            ref, self._ref, reservation_ref, kind, self._place.currency, str(amount), str(rates[0]), str(rates[1]),
            reverses_ref, _iso(at), "true" if is_void else "", reason,
        ))  # fmt: skip

    def _happens(self, percent: int) -> bool:
        return self._draw.randrange(100) < percent

    def _one_of(self, weights: dict[str, int]) -> str:
        return self._draw.choices(list(weights), list(weights.values()))[0]

    def _midnight(self, day: date) -> int:
        return self._epoch(datetime(day.year, day.month, day.day, tzinfo=zone(self._place.timezone)))

    @staticmethod
    def _epoch(instant: datetime) -> int:
        return int(instant.timestamp())


def _iso(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()
