"""Erasing a buyer: their address and name leave whatever the law lets go, and what stays is said, with its reason.

Money needs neither: movements, ledger and statements name reservations and organizations. What does hold an address is
a reservation, until its event is over and refunds and disputes with it, and what was sent or recorded about it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row

from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.errors import InvalidInput
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
        InvalidInput: the address or name is too short to be looked for, or the role may not change reservations.
    """
    _refuse_unusable(connection, buyer)
    lock = "" if dry_run else "FOR UPDATE OF reservation"
    values = {"address": buyer.address, "now": buyer.now, "over_before": buyer.now - buyer.after}
    rows = connection.exec_driver_sql(f"{_RESERVATIONS} {lock}", values).all()
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
        names = {"table": row.table_name, "column": row.column_name, "type": row.data_type}
        for pattern in map(_pattern, buyer.words):
            hits = connection.exec_driver_sql(_HITS.format(**names), {"pattern": pattern}).scalar_one()
            if hits and not dry_run:
                connection.exec_driver_sql(_STRIKE_OUT.format(**names), {"pattern": pattern})
            found += hits
    return found


def _about(row: Row[Any]) -> About:
    return About(row.public_ref, row.event, row.status, row.stays)


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
        raise InvalidInput(
            "This role may not erase anybody; name that of the schema's owner in TICKETFLOW_DATABASE_URL."
        )


_MAY_ERASE = """
    SELECT pg_has_role(current_user, (SELECT relowner FROM pg_class WHERE oid = 'reservation'::regclass), 'USAGE')
"""

_RESERVATIONS = f"""
    SELECT reservation.id, public_ref, event.external_ref AS event, reservation.status,
        CASE
            WHEN reservation.status = 'ACTIVE' AND stuck_reported_at IS NOT NULL
                THEN 'its payment is stuck: `ticketflow reservations resolve ' || public_ref || '` ends that'
            WHEN reservation.status = 'ACTIVE' THEN 'it is being bought'
            WHEN reservation.status IN ('EXPIRED', 'CANCELLED') AND EXISTS (SELECT {KEPT_CAPTURE})
                THEN 'its money is here and has no ticket: refund it first'
            WHEN (reservation.status = 'CONFIRMED'
                    OR EXISTS (SELECT FROM money_movement AS paid WHERE paid.reservation_id = reservation.id))
                AND ends_at >= %(over_before)s::timestamptz
                THEN 'its event ends ' || to_char(ends_at AT TIME ZONE event.timezone, 'YYYY-MM-DD')
                    || ', and refunds and disputes come until '
                    || to_char((ends_at + (%(now)s::timestamptz - %(over_before)s::timestamptz))
                        AT TIME ZONE event.timezone, 'YYYY-MM-DD')
        END AS stays
    FROM reservation JOIN event ON event.id = event_id
    WHERE lower(buyer_email) = lower(%(address)s::text)
    ORDER BY reservation.id
"""

_FORGET = "UPDATE reservation SET buyer_email = %(erased)s WHERE id = ANY (%(ids)s::bigint[])"

_NAMES_THEM = """
    EXISTS (
        SELECT FROM unnest(%(patterns)s::text[]) AS pattern
        WHERE concat_ws(' ', payload::text, last_error, last_response, encode(body, 'escape')) ~* pattern)
"""

# The reservation that an event is about; a reminder is an aggregate of its own.
_ABOUT = "coalesce(payload ->> 'ref', aggregate_id)"

# What was rendered for a reservation that lets go, and what names the buyer; not what is about one that stays.
_CONCERNS_THEM = f"""
    {_ABOUT} <> ALL (%(staying)s::text[])
    AND ({_ABOUT} = ANY (%(going)s::text[]) AND body IS NOT NULL OR {_NAMES_THEM})
"""

_EVENTS_COUNTED = sql(__file__, "events_counted", concerns_them=_CONCERNS_THEM)

_EVENTS_GONE = sql(__file__, "events_gone", concerns_them=_CONCERNS_THEM)

_LEFT = sql(__file__, "left", concerns_them=_CONCERNS_THEM, about=_ABOUT)

# Names from the catalogue, quoted by it.
_COLUMNS = """
    SELECT quote_ident(relname) AS table_name, quote_ident(attname) AS column_name,
        format_type(atttypid, atttypmod) AS data_type
    FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
    WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND attnum > 0 AND NOT attisdropped
        AND atttypid IN ('text'::regtype, 'jsonb'::regtype) AND relname <> ALL (%(books)s::text[])
        AND NOT EXISTS (
            SELECT FROM pg_index WHERE indrelid = attrelid AND indisunique AND attnum = ANY (indkey))
    ORDER BY relname, attnum
"""

_HITS = "SELECT count(*) FROM {table} WHERE CAST({column} AS text) ~* %(pattern)s"

_STRIKE_OUT = """
    UPDATE {table} SET {column} = CAST(regexp_replace(CAST({column} AS text), %(pattern)s, 'erased', 'gi') AS {type})
    WHERE CAST({column} AS text) ~* %(pattern)s
"""
