"""What an import may hold: five kinds of rows, their columns, and what a single cell must look like.

A check returns why a cell is refused, or None. What it lets through, Postgres reads in one way only, whatever the
session's settings; what takes more than one cell to judge stands in `rules`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date

from ticketflow_orch.months import known_zones

Check = Callable[[str], str | None]

# Far below what a unique index can hold.
_LONGEST_REFERENCE = 500
_BIGINT = 2**63 - 1
_INTEGER = 2**31 - 1

_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]{0,18})").fullmatch
_DAY = r"[12][0-9]{3}-[0-9]{2}-[0-9]{2}"
_MOMENT = rf"{_DAY}[T ](?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9](?:\.[0-9]{{1,6}}0*)?)?"
_DATE = re.compile(_DAY).fullmatch
_MONTH = re.compile(r"[12][0-9]{3}-(?:0[1-9]|1[0-2])").fullmatch
_WITHOUT_OFFSET = re.compile(_MOMENT).fullmatch
_INSTANT = re.compile(rf"{_MOMENT}(?:Z|[+-](?:0[0-9]|1[0-4])(?::?[0-5][0-9])?)").fullmatch
# Texts may have tabs and line ends, LF or CRLF; no other control character.
_CONTROL = re.compile(r"\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]").search
# What prints nothing or looks like a blank: control and format characters (zero width, direction, joiners, marks of
# byte order), blanks other than the ordinary one, fillers, variation selectors; and what stands for a lost character.
_UNSEEN = re.compile(
    r"[\x00-\x1f\x7f-\xa0\xad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f\u2000-\u200f\u2028-\u202f"
    r"\u205f-\u206f\u2800\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffd\U0001d173-\U0001d17a"
    r"\U000e0000-\U000e0fff]"
).search


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a file. `type` is what Postgres makes of a cell; `optional` columns may be missing altogether."""

    name: str
    type: str
    check: Check
    may_be_empty: bool = False
    optional: bool = False
    if_empty: str | None = None

    @property
    def is_month(self) -> bool:
        """Whether its cells name months, which are text to Postgres."""
        return self.check is _month


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of rows: `name` is the stem of its file, `table` where they go, `key` what names a row."""

    name: str
    table: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ("external_ref",)

    def column(self, name: str) -> Column:
        """The column called `name`, which must be one of this kind."""
        return next(column for column in self.columns if column.name == name)

    def position(self, name: str) -> int:
        """Where the column called `name` stands among this kind's columns, from 1; 0 for none."""
        return next((number for number, column in enumerate(self.columns, 1) if column.name == name), 0)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one kind on their way in: from a file, or made up. `rows` is read once; None and "" are empty cells."""

    kind: Kind
    file: str
    columns: Sequence[str]
    rows: Iterable[tuple[int, Sequence[str | None]]]


def _text(cell: str) -> str | None:
    if cell.isprintable():
        return None
    if "\0" in cell:
        return "holds a NUL character, which Postgres cannot store"
    found = _CONTROL(cell)
    return f"holds the control character U+{ord(found[0][0]):04X}; take it out" if found else None


def _reference(cell: str) -> str | None:
    if len(cell) > _LONGEST_REFERENCE:
        return f"is longer than {_LONGEST_REFERENCE} characters"
    if "\0" in cell:
        return _text(cell)
    if cell != cell.strip():
        return "begins or ends with a blank"
    return None if cell.isascii() and cell.isprintable() else _alike(cell)


def _alike(cell: str) -> str | None:
    # What looks like another reference, or like this one, must be the same one.
    unseen = _UNSEEN(cell)
    if unseen is not None:
        name = unicodedata.name(unseen[0], "control character").lower()
        return f"holds U+{ord(unseen[0]):04X} ({name}), which the eye cannot tell; take it out"
    if not unicodedata.is_normalized("NFC", cell):
        return "holds letters and marks that one character stands for; write it in Unicode's normal form NFC"
    return None


def _whole(lowest: int, highest: int) -> Check:
    reason = f"is not a whole number from {lowest} to {highest}"

    def check(cell: str) -> str | None:
        return None if _WHOLE(cell) and lowest <= int(cell) <= highest else reason

    return check


def _one_of(*values: str) -> Check:
    reason, allowed = f"is none of {', '.join(values)}", frozenset(values)

    def check(cell: str) -> str | None:
        return None if cell in allowed else reason

    return check


def _boolean(cell: str) -> str | None:
    return None if cell.lower() in {"true", "false"} else "is neither true nor false"


def _date(cell: str) -> str | None:
    return _calendar(cell) if _DATE(cell) else "is not a date written YYYY-MM-DD"


def _month(cell: str) -> str | None:
    return None if _MONTH(cell) else "is not a month written YYYY-MM"


def _instant(cell: str) -> str | None:
    if _INSTANT(cell):
        return _calendar(cell[:10])
    if _WITHOUT_OFFSET(cell):
        return "has no offset, so it names no instant; add Z or an offset such as +02:00"
    return "is not an instant written like 2026-03-31T22:00:00Z or 2026-04-01T00:00:00+02:00"


def _calendar(day: str) -> str | None:
    try:
        date.fromisoformat(day)
    except ValueError:
        return "names a day that no calendar has"
    return None


def _zone(cell: str) -> str | None:
    return None if cell in known_zones() else "is no IANA time zone that tzdata knows"


_RATE = _whole(0, 10_000)
_RATES = (Column("commission_rate_bps", "integer", _RATE), Column("commission_tax_bps", "integer", _RATE))

ORGANIZATIONS = Kind(
    "organizations",
    "organization",
    (
        Column("external_ref", "text", _reference),
        Column("name", "text", _text),
        Column("timezone", "text", _zone),
        Column("currency", "text", _text),
        *_RATES,
        Column("joined_on", "date", _date),
        Column("left_on", "date", _date, may_be_empty=True),
        Column("contact_email", "text", _text, may_be_empty=True),
        Column("locale", "text", _text, may_be_empty=True),
        Column("payouts_from", "text", _month, may_be_empty=True, optional=True),
    ),
)
EVENTS = Kind(
    "events",
    "event",
    (
        Column("external_ref", "text", _reference),
        Column("organization_ref", "text", _reference),
        Column("title", "text", _text),
        Column("status", "text", _one_of("DRAFT", "OPEN", "CLOSED", "CANCELLED")),
        Column("starts_at", "timestamptz", _instant),
        Column("ends_at", "timestamptz", _instant),
        Column("timezone", "text", _zone),
        Column("venue", "text", _text, may_be_empty=True, optional=True),
    ),
)
RESERVATIONS = Kind(
    "reservations",
    "reservation",
    (
        Column("external_ref", "text", _reference),
        Column("event_ref", "text", _reference),
        Column("buyer_email", "text", _text),
        Column("quantity", "integer", _whole(1, _INTEGER)),
        Column("status", "text", _one_of("ACTIVE", "CONFIRMED", "EXPIRED", "CANCELLED")),
        Column("created_at", "timestamptz", _instant),
        Column("expires_at", "timestamptz", _instant),
        Column("confirmed_at", "timestamptz", _instant, may_be_empty=True),
        Column("payment_started_at", "timestamptz", _instant, may_be_empty=True, optional=True),
    ),
)
MONEY_MOVEMENTS = Kind(
    "money_movements",
    "money_movement",
    (
        Column("external_ref", "text", _reference),
        Column("organization_ref", "text", _reference),
        Column("reservation_ref", "text", _reference, may_be_empty=True),
        Column("kind", "text", _one_of("CAPTURE", "REFUND", "CHARGEBACK", "CHARGEBACK_REVERSAL", "FEE", "MANUAL")),
        Column("currency", "text", _text),
        Column("amount", "bigint", _whole(-_BIGINT, _BIGINT)),
        *_RATES,
        Column("reverses_ref", "text", _reference, may_be_empty=True),
        Column("occurred_at", "timestamptz", _instant),
        Column("is_void", "boolean DEFAULT false", _boolean, may_be_empty=True, optional=True, if_empty="false"),
        Column("reason", "text", _text, may_be_empty=True, optional=True),
    ),
)
OPENING_BALANCES = Kind(
    "opening_balances",
    "opening_balance",
    (
        Column("organization_ref", "text", _reference),
        Column("currency", "text", _text),
        Column("amount", "bigint", _whole(-_BIGINT, _BIGINT)),
    ),
    key=("organization_ref", "currency"),
)

# In the order in which rows refer to one another: whatever a row names is of an earlier kind, or of its own.
KINDS = (ORGANIZATIONS, EVENTS, RESERVATIONS, MONEY_MOVEMENTS, OPENING_BALANCES)
