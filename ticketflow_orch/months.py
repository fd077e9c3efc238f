"""Months as pure values: strict keys, and half-open windows of instants in any IANA time zone.

Zone rules come from the locked `tzdata` package, never from the operating system or Postgres, whose copies
differ at hundreds of month edges. Nothing here depends on the clock or on the zone of process, server or session.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from importlib import resources
from zoneinfo import ZoneInfo

from ticketflow_orch.errors import InvalidInput

_KEY = re.compile(r"([0-9]{4})-(0[1-9]|1[0-2])", re.ASCII)
# Years in which each month's edges, and its neighbours', are instants that Python can name in any zone.
_YEARS = range(1970, 9999)


@cache
def known_zones() -> frozenset[str]:
    """Every IANA zone name that the locked tzdata package carries."""
    return frozenset(resources.files("tzdata").joinpath("zones").read_text("utf-8").split())


@cache
def zone(name: str) -> ZoneInfo:
    """The zone called `name`, by the locked tzdata package.

    Raises:
        InvalidInput: the package has no zone of that name.
    """
    if name not in known_zones():
        raise InvalidInput(unknown_zone(name))
    with resources.files("tzdata.zoneinfo").joinpath(*name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)


def unknown_zone(name: str) -> str:
    """What is said of a `name` that is none of `known_zones`."""
    return f"Time zone {name!r} is unknown to tzdata; use an IANA name such as 'Europe/Madrid'."


@dataclass(frozen=True, slots=True)
class Window:
    """A half-open span of time: `starts_at` belongs to it, `ends_at` does not. Both are aware UTC instants."""

    starts_at: datetime
    ends_at: datetime

    def __contains__(self, instant: datetime) -> bool:
        return self.starts_at <= instant < self.ends_at


@dataclass(frozen=True, slots=True, order=True)
class Month:
    """One calendar month, written `YYYY-MM`; the settlement's partition and idempotency key."""

    year: int
    number: int

    @classmethod
    def parse(cls, key: str) -> Month:
        """The month that `key` names.

        Raises:
            InvalidInput: `key` is not exactly `YYYY-MM` with a month from 01 to 12 and a year from 1970 to 9998.
        """
        match = _KEY.fullmatch(key)
        if match is None or int(match[1]) not in _YEARS:
            raise InvalidInput(f"{key!r} is not a month; write it as YYYY-MM, for example 2026-03.")
        return cls(int(match[1]), int(match[2]))

    @classmethod
    def of_day(cls, day: date) -> Month:
        """The month that `day` lies in."""
        return cls(day.year, day.month)

    @classmethod
    def of_instant(cls, instant: datetime, timezone: str) -> Month:
        """The month that an aware `instant` lies in for somebody who lives in `timezone`.

        Asks the windows rather than the local date: when a clock falls back over midnight of the 1st, local dates
        run backwards for an hour, and the month has begun all the same.
        """
        month = cls.of_day(instant.astimezone(zone(timezone)).date())
        following = month.next()
        return following if instant >= following.window(timezone).starts_at else month

    @property
    def first_day(self) -> date:
        """The 1st, as it stands in the database."""
        return date(self.year, self.number, 1)

    def __str__(self) -> str:
        return f"{self.year:04d}-{self.number:02d}"

    def next(self) -> Month:
        """The month after this one."""
        return Month(self.year + self.number // 12, self.number % 12 + 1)

    def previous(self) -> Month:
        """The month before this one."""
        return Month(self.year - (self.number == 1), (self.number - 2) % 12 + 1)

    def window(self, timezone: str) -> Window:
        """From local midnight of the 1st to local midnight of the next 1st, as UTC instants.

        Where midnight does not exist (clocks jump over it) the month starts with the first instant after the jump;
        where it comes twice, with the first of the two.
        """
        return Window(_midnight(self.first_day, timezone), _midnight(self.next().first_day, timezone))


def day_window(day: date, timezone: str) -> Window:
    """From local midnight of `day` to the next, as UTC instants; odd midnights as in `Month.window`."""
    return Window(_midnight(day, timezone), _midnight(day + timedelta(days=1), timezone))


def to_the_minute(instant: datetime, timezone: str) -> str:
    """An aware `instant` as people read it who live in `timezone`."""
    return f"{instant.astimezone(zone(timezone)):%Y-%m-%d %H:%M}"


def months_between(first: Month, last: Month) -> Iterator[Month]:
    """All months from `first` to `last`, both included; none when `last` is earlier."""
    while first <= last:
        yield first
        first = first.next()


def last_zone_to_finish(month: Month, timezones: Iterable[str]) -> tuple[str, datetime]:
    """The zone in which `month` ends last, and the UTC instant at which it does.

    Raises:
        InvalidInput: a zone is unknown.
        ValueError: `timezones` is empty.
    """
    ends = [(month.window(name).ends_at, name) for name in timezones]
    ends_at, name = max(ends)
    return name, ends_at


def _midnight(day: date, timezone: str) -> datetime:
    # fold=0 is what both odd cases need: in a gap it applies the offset before the jump, which names the instant
    # of the jump itself; in an overlap it names the first of the two midnights.
    return datetime(day.year, day.month, day.day, fold=0, tzinfo=zone(timezone)).astimezone(UTC)
