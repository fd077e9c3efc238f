"""Addresses that no mail goes to any more: they bounced, their owner complained or unsubscribed, or somebody says so.

An entry is never deleted, only cleared, so that it can be seen who let mails go again and when. What was kept back for
it goes then, if it is not too late.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from sqlalchemy import Connection

from ticketflow_orch.errors import InvalidInput, PreconditionFailed
from ticketflow_orch.formatting.mail_addresses import mail_address


class Reason(StrEnum):
    """Why nothing is sent to an address."""

    BOUNCE = "BOUNCE"
    COMPLAINT = "COMPLAINT"
    UNSUBSCRIBE = "UNSUBSCRIBE"
    BY_HAND = "BY_HAND"


# What each reason keeps back; what a reader needs although they complained still goes.
_REMINDERS = frozenset({"ReminderDue"})
_NOTICES = frozenset({"ReminderDue", "ReminderChanged"})
_WORDS: Mapping[Reason, str] = {
    Reason.BOUNCE: "bounced",
    Reason.COMPLAINT: "complained",
    Reason.UNSUBSCRIBE: "unsubscribed",
    Reason.BY_HAND: "was suppressed by hand",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the list. `detail`: what was said. `outbox_event_id`: the mail that it is about, where known."""

    address: str
    reason: Reason
    detail: str
    outbox_event_id: UUID | None
    suppressed_by: str
    suppressed_at: datetime
    cleared_by: str | None
    cleared_at: datetime | None


def suppressions(connection: Connection, addresses: Collection[str]) -> Mapping[str, frozenset[Reason]]:
    """Why nothing is sent to those of `addresses` that are suppressed; they are keys, as `MailAddress.key` has them."""
    found: defaultdict[str, set[Reason]] = defaultdict(set)
    for row in connection.exec_driver_sql(_ACTIVE, {"addresses": sorted(set(addresses))}):
        found[row.address].add(Reason(row.reason))
    return {address: frozenset(reasons) for address, reasons in found.items()}


def objection(event_type: str, reasons: Collection[Reason]) -> str | None:
    """Why a mail of `event_type` is not sent to an address that is suppressed for `reasons`; None when it is."""
    for reason in sorted(reasons):
        if _keeps_back(reason, event_type):
            return f"The address is suppressed: it {_WORDS[reason]}; `ticketflow mail suppressed` lists when and why."
    return None


def suppress(
    connection: Connection,
    address: str,
    reason: Reason,
    detail: str,
    *,
    by: str,
    outbox_event_id: UUID | None = None,
) -> bool:
    """Send nothing to `address` any more; False: it is suppressed for this reason already.

    Raises:
        InvalidInput: it is no address.
    """
    values = {
        "address": _key(address),
        "reason": reason.value,
        "detail": detail[:500].replace("\0", "\ufffd"),
        "event_id": outbox_event_id,
        "by": by,
    }
    return connection.exec_driver_sql(_SUPPRESS, values).rowcount == 1


def was_reported(connection: Connection, address: str, reason: Reason, outbox_event_id: UUID | None) -> bool:
    """Whether `address` was suppressed for what became of this mail, though it may be cleared by now."""
    if outbox_event_id is None:
        return False
    values = {"address": _key(address), "reason": reason.value, "event_id": outbox_event_id}
    return bool(connection.exec_driver_sql(_WAS_REPORTED, values).scalar_one())


def clear(connection: Connection, address: str, by: str) -> int:
    """Let mails go to `address` again; for how many reasons none did.

    Raises:
        InvalidInput: it is no address.
        PreconditionFailed: it is not suppressed.
    """
    cleared = connection.exec_driver_sql(_CLEAR, {"address": _key(address), "by": by}).rowcount
    if not cleared:
        raise PreconditionFailed(f"{address} is not suppressed; `ticketflow mail suppressed` lists what is.")
    return cleared


def list_suppressed(
    connection: Connection, *, address: str | None = None, everything: bool = False, limit: int = 100
) -> tuple[Entry, ...]:
    """The last `limit` entries, the newest first; with `everything` those that were cleared too.

    Raises:
        InvalidInput: `address` is none.
    """
    key = None if address is None else _key(address)
    rows = connection.exec_driver_sql(_LIST, {"address": key, "everything": everything, "limit": limit})
    return tuple(
        Entry(
            row.address,
            Reason(row.reason),
            row.detail,
            row.outbox_event_id,
            row.suppressed_by,
            row.suppressed_at,
            row.cleared_by,
            row.cleared_at,
        )
        for row in rows
    )


def _keeps_back(reason: Reason, event_type: str) -> bool:
    match reason:
        case Reason.UNSUBSCRIBE:
            return event_type in _REMINDERS
        case Reason.COMPLAINT:
            return event_type in _NOTICES
        case _:
            return True


def _key(address: str) -> str:
    found = mail_address(address)
    if found is None:
        raise InvalidInput(f"{address!r} is not an e-mail address; write one such as buyer@example.com.")
    return found.key


_ACTIVE = """
    SELECT address, reason FROM mail_suppression
    WHERE cleared_at IS NULL AND address = ANY (%(addresses)s::text[])
"""

_SUPPRESS = """
    INSERT INTO mail_suppression (address, reason, detail, outbox_event_id, suppressed_by)
    VALUES (%(address)s, %(reason)s, %(detail)s, %(event_id)s::uuid, %(by)s)
    ON CONFLICT (address, reason) WHERE cleared_at IS NULL DO NOTHING
"""

_WAS_REPORTED = """
    SELECT EXISTS (
        SELECT FROM mail_suppression
        WHERE address = %(address)s AND reason = %(reason)s AND outbox_event_id = %(event_id)s::uuid)
"""

_CLEAR = """
    UPDATE mail_suppression SET cleared_at = clock_timestamp(), cleared_by = %(by)s::text
    WHERE address = %(address)s AND cleared_at IS NULL
"""

_LIST = """
    SELECT * FROM mail_suppression
    WHERE (%(everything)s::boolean OR cleared_at IS NULL)
        AND (%(address)s::text IS NULL OR address = %(address)s::text)
    ORDER BY id DESC LIMIT %(limit)s::bigint
"""
