"""Erasing a buyer: their address and name leave whatever the law lets go, and what stays is named, with its reason.

Money needs neither: movements, ledger and statements name reservations and organizations. What does hold an address is
a reservation, until its event is over and refunds and disputes with it, and what was sent or recorded about it. What is
deleted because it is old is in `monitoring.retention`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row

from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.errors import InvalidInput, PreconditionFailed
from ticketflow_orch.ticketing.captures import KEPT_CAPTURE

# Tables that are the business's own books, and the list of addresses that take no mail any more: what is written there
# stays. Every other table that records what happened, later ones included, has the words struck out.
BOOKS = (
    "organization", "organization_change", "event", "reservation", "money_movement", "opening_balance", "ledger_entry",
    "organization_balance", "payout", "currency", "installation", "installation_change", "settlement_window",
    "data_import", "outbox_event", "mail_suppression",
)  # fmt: skip
# A domain that no mail reaches, for ever (RFC 2606).
ERASED = "erased@erased.invalid"
_SHORTEST = 4
# What before and after a word makes it a part of another: a letter or digit, and in addresses what holds their parts
# together, as joanna@… and anna@….co.uk are others than anna@…. Behind an escape of JSON or of bytes a word may begin.
_AROUND = {
    False: ("[[:alnum:]]", "[[:alnum:]]"),
    True: ("[[:alnum:]._%+-]", "[[:alnum:]]|[.-][[:alnum:]]"),
}
_ESCAPE = r"\\(?:[bfnrt]|[0-7]{3})"


@dataclass(frozen=True, slots=True)
class About:
    """A reservation of the buyer; `stays`: why its address does, None where it goes."""

    reservation: str
    event: str
    status: str
    stays: str | None


@dataclass(frozen=True, slots=True)
class Erasure:
    """What became of a buyer.

    `events`: those of the outbox that were deleted; `records`: rows of other tables, such as results of jobs, in which
    words were struck out. `left`: events that name the buyer and stay, by id, and why.
    """

    reservations: tuple[About, ...]
    events: int
    records: int
    left: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Buyer:
    """Who is to be erased: by `address`, whatever its case, and the `name` by which texts may call them.

    A reservation with money lets go of them `after` its event has ended; `now` is the business time (aware).
    """

    address: str
    now: datetime
    after: timedelta
    name: str | None = None

    @property
    def words(self) -> list[str]:
        """What no text is to hold any more."""
        return [self.address, *([self.name] if self.name else [])]

    @property
    def patterns(self) -> list[str]:
        """What finds `words` in a text, and in the escaped text of bytes, but no longer word of somebody else's."""
        return [_pattern(word) for one in self.words for word in dict.fromkeys((one, _escaped(one)))]


def erase(connection: Connection, buyer: Buyer, *, dry_run: bool = False) -> Erasure:
    """Erase the buyer in the caller's transaction, or with `dry_run` say what that would come to.

    A reservation loses its address; an event that has ended and is about such a reservation, or names the buyer, is
    deleted as the retention would later; other records have the words struck out. Repeating it finds what has become
    free since.

    Raises:
        InvalidInput: the address or name is too short to be looked for.
        PreconditionFailed: the role may not change reservations.
    """
    _refuse_unusable(connection, buyer)
    values = {"address": buyer.address, "now": buyer.now, "over_before": buyer.now - buyer.after}
    rows = connection.exec_driver_sql(_RESERVATIONS if dry_run else _RESERVATIONS_LOCKED, values).all()
    going = [row for row in rows if row.stays is None]
    about = {
        "patterns": buyer.patterns,
        "going": [row.public_ref for row in going],
        "staying": [row.public_ref for row in rows if row.stays is not None],
    }
    if dry_run:
        events = connection.exec_driver_sql(_EVENTS_COUNTED, about).scalar_one()
    else:
        connection.exec_driver_sql(_FORGET, {"ids": [row.id for row in going], "erased": ERASED})
        events = connection.exec_driver_sql(_EVENTS_GONE, about).scalar_one()
    records = _records(connection, buyer, dry_run=dry_run)
    left = tuple((str(row.event_id), row.why) for row in connection.exec_driver_sql(_LEFT, about))
    return Erasure(tuple(_about(row) for row in rows), events, records, left)


def _records(connection: Connection, buyer: Buyer, *, dry_run: bool) -> int:
    """Strike the words out of each column that records any and is no key; in how many rows they are."""
    found = 0
    for row in connection.exec_driver_sql(_COLUMNS, {"books": list(BOOKS)}).all():
        # Names of the catalogue, which has quoted them.
        names = {"table": row.table_name, "column": row.column_name}
        for pattern in map(_pattern, buyer.words):
            hits = connection.exec_driver_sql(sql(__file__, "hits", **names), {"pattern": pattern}).scalar_one()
            if hits and not dry_run:
                strike_out = sql(__file__, "strike_out", **names, type=row.data_type)
                connection.exec_driver_sql(strike_out, {"pattern": pattern})
            found += hits
    return found


def _about(row: Row[Any]) -> About:
    return About(reservation=row.public_ref, event=row.event, status=row.status, stays=row.stays)


def _pattern(word: str) -> str:
    """The regular expression of Postgres that finds `word` where it is no part of a longer name or address."""
    literally = "".join(c if c.isalnum() or not c.isascii() else f"\\{c}" for c in word)
    before, after = _AROUND["@" in word]
    return f"(?:(?<!{before})|(?<={_ESCAPE})){literally}(?!{after})"


def _escaped(word: str) -> str:
    """`word` as `encode(…, 'escape')` writes its bytes."""
    octal = re.sub(rb"[\x80-\xff]", lambda byte: b"\\%03o" % ord(byte[0]), word.encode().replace(b"\\", b"\\\\"))
    return octal.decode("ascii")


def _refuse_unusable(connection: Connection, buyer: Buyer) -> None:
    if "@" not in buyer.address:
        raise InvalidInput(f"{buyer.address!r} is no e-mail address; name the one that the reservations have.")
    short: Sequence[str] = [word for word in buyer.words if len(word.strip()) < _SHORTEST]
    if short:
        raise InvalidInput(f"{short[0]!r} is in too many texts to be looked for; name {_SHORTEST} characters or more.")
    if not connection.exec_driver_sql(_MAY_ERASE).scalar_one():
        raise PreconditionFailed(
            "This role may not erase anybody; name that of the schema's owner in TICKETFLOW_DATABASE_URL."
        )


_MAY_ERASE = """
    SELECT pg_has_role(current_user, (SELECT relowner FROM pg_class WHERE oid = 'reservation'::regclass), 'USAGE')
"""

_RESERVATIONS = sql(__file__, "reservations", kept_capture=KEPT_CAPTURE, lock="")

_RESERVATIONS_LOCKED = sql(__file__, "reservations", kept_capture=KEPT_CAPTURE, lock="FOR UPDATE OF reservation")

_FORGET = "UPDATE reservation SET buyer_email = %(erased)s WHERE id = ANY (%(ids)s::bigint[])"

# SQL of the reservation that an event of the outbox is about; a reminder is an aggregate of its own.
_ABOUT = "coalesce(payload ->> 'ref', aggregate_id)"

_CONCERNS_THEM = sql(__file__, "concerns_them", about=_ABOUT)

_EVENTS_COUNTED = sql(__file__, "events_counted", concerns_them=_CONCERNS_THEM)

_EVENTS_GONE = sql(__file__, "events_gone", concerns_them=_CONCERNS_THEM)

_LEFT = sql(__file__, "left", concerns_them=_CONCERNS_THEM, about=_ABOUT)

_COLUMNS = sql(__file__, "columns")
