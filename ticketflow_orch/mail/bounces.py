"""What comes back of mails: bounces, complaints and wishes to be left alone, from a mailbox or from a provider.

A report in a mailbox could be anybody's, so it counts only where it names a mail of ours, by a Message-ID that nobody
can guess, and it is about the address that this mail went to. What a provider reports is passed on by somebody who
has checked that it is the provider.
"""

from __future__ import annotations

import json
import mailbox
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from email import message_from_bytes, policy
from email.message import EmailMessage, Message
from pathlib import Path
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from ticketflow_orch.errors import InvalidInput
from ticketflow_orch.formatting.mail_addresses import mail_address
from ticketflow_orch.mail.suppression import Reason, suppress, was_reported
from ticketflow_orch.outbox.delivery import printable

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# Permanent, and about the mailbox or the way to it (RFC 3463); what is about the message, its size or a policy is not.
_NO_SUCH_MAILBOX = re.compile(r"5\.(0\.0|1\.\d+|2\.[01]|4\.[14])")
_DELIVERY_STATUS = ("message/delivery-status", "message/global-delivery-status")
_ORIGINALS = ("message/rfc822", "message/global", "text/rfc822-headers", "message/global-headers")


@dataclass(frozen=True, slots=True)
class Report:
    """One thing that came back. `event_id`: the mail that it is about; `address`: whose it is, where it says so."""

    reason: Reason
    detail: str
    event_id: UUID | None = None
    address: str | None = None


@dataclass(frozen=True, slots=True)
class Read:
    """How many reports suppress an address, were known already, or mean nothing for an address of ours."""

    suppressed: int
    known: int
    ignored: int


def take_in(connection: Connection, reports: Iterable[Report | None], by: str) -> Read:
    """Suppress the addresses that `reports` are about, in the caller's transaction; None counts as ignored."""
    done = {"suppressed": 0, "known": 0, "ignored": 0}
    for report in reports:
        address = None if report is None else _address(connection, report)
        if report is None or address is None:
            done["ignored"] += 1
        elif was_reported(connection, address, report.reason, report.event_id):
            # An entry that was cleared stays so, however often the same report is read.
            done["known"] += 1
        else:
            new = suppress(connection, address, report.reason, report.detail, by=by, outbox_event_id=report.event_id)
            done["suppressed" if new else "known"] += 1
    return Read(**done)


def read_mailbox(path: Path) -> Iterator[Report | None]:
    """The reports in a mailbox (mbox or Maildir) or in the file of a single mail, one for each mail in it.

    Raises:
        InvalidInput: there is no such file, or it cannot be read.
    """
    try:
        for raw in _raw_mails(path):
            yield _report(raw)
    except OSError as error:
        raise InvalidInput(
            f"{path} cannot be read ({error.strerror}); name an mbox file, a Maildir or a mail."
        ) from None


def read_report(mail: EmailMessage) -> Report | None:
    """What `mail` reports about one of ours; None where it is no report, or nothing follows from it."""
    parts = [part for part in mail.walk() if not part.is_multipart() or part.get_content_maintype() == "message"]
    original = next((_original(part) for part in parts if part.get_content_type() in _ORIGINALS), "")
    event_id = _event_id(original)
    for part in parts:
        if part.get_content_type() in _DELIVERY_STATUS:
            return _bounce(part, event_id)
        if part.get_content_type() == "message/feedback-report":
            return _complaint(part, event_id)
    wished = _event_id(str(mail.get("Subject", "")))
    if wished is None or mail.get("Auto-Submitted", "no") != "no":
        return None
    return Report(Reason.UNSUBSCRIBE, "unsubscribed by mail", wished)


def read_notifications(lines: Iterable[str]) -> Iterator[Report | None]:
    """What a provider reports, a JSON object a line: in the words of Amazon SES or Postmark, or in our own.

    Ours: {"reason": "bounce" | "complaint" | "unsubscribe", "address": …, "event_id": …, "detail": …}, one of address
    and event_id at least.

    Raises:
        InvalidInput: a line is no JSON object; names its number.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            notice = json.loads(line)
        except (ValueError, RecursionError):
            notice = None
        if not isinstance(notice, dict):
            raise InvalidInput(f"Line {number} is no JSON object; write one a line, as the provider sends it.")
        try:
            yield from list(_reports(notice))
        except (AttributeError, TypeError, ValueError, RecursionError):
            # What it means we do not know; it is counted.
            yield None


def _report(raw: bytes) -> Report | None:
    try:
        return read_report(message_from_bytes(raw, policy=policy.default))
    except Exception:  # noqa: BLE001 - anybody may write to a mailbox, and the parser breaks in many ways
        return None


def _raw_mails(path: Path) -> Iterator[bytes]:
    if path.is_dir():
        box: mailbox.Mailbox[Any] = mailbox.Maildir(path, create=False)
    else:
        content = path.read_bytes()
        if not content.startswith(b"From "):
            yield content
            return
        box = mailbox.mbox(path, create=False)
    try:
        yield from (box.get_bytes(key) for key in box.iterkeys())
    finally:
        box.close()


def _original(part: Message) -> str:
    """The Message-ID of the mail that a report brings along, whole or its headers only."""
    whole = _inside(part)
    if whole is not None:
        return str(whole.get("Message-ID", ""))
    content = part.get_payload(decode=True)
    headers = message_from_bytes(content if isinstance(content, bytes) else b"", policy=policy.default)
    return str(headers.get("Message-ID", ""))


def _inside(part: Message) -> Message | None:
    """The message that the standard library reads in a part of the type message/…, if it reads one."""
    payload = part.get_payload()
    first = payload[0] if isinstance(payload, list) and payload else None
    return first if isinstance(first, Message) else None


def _blocks(part: Message) -> list[Message]:
    payload = part.get_payload()
    if isinstance(payload, list) and part.get_content_type() == "message/delivery-status":
        return [block for block in payload if isinstance(block, Message)]
    # The standard library reads the first block of the global form only.
    inside = _inside(part)
    whole = part.get_payload(decode=True) if inside is None else inside.as_bytes()
    pieces = re.split(rb"\r?\n\r?\n", whole if isinstance(whole, bytes) else b"")
    return [message_from_bytes(piece, policy=policy.default) for piece in pieces if piece.strip()]


def _bounce(part: Message, event_id: UUID | None) -> Report | None:
    if event_id is None:
        return None
    for block in _blocks(part):
        status = str(block.get("Status", "")).strip().split(" ")[0]
        failed = str(block.get("Action", "")).strip().lower() == "failed"
        if failed and _NO_SUCH_MAILBOX.fullmatch(status):
            said = printable(str(block.get("Diagnostic-Code", ""))).strip()
            return Report(Reason.BOUNCE, f"{status} {said}".strip(), event_id)
    return None


def _complaint(part: Message, event_id: UUID | None) -> Report | None:
    fields = _inside(part) or part
    kind = str(fields.get("Feedback-Type", "")).strip().lower()
    if event_id is None or kind in {"", "not-spam"}:
        return None
    return Report(Reason.COMPLAINT, printable(kind), event_id)


def _event_id(words: str) -> UUID | None:
    found = _UUID.search(words.lower())
    return None if found is None else UUID(found[0])


def _reports(notice: Mapping[str, Any]) -> Iterator[Report | None]:
    # SES wraps what it sends through SNS in a string.
    if isinstance(notice.get("Message"), str) and notice["Message"].startswith("{"):
        notice = json.loads(notice["Message"])
    kind = str(
        notice.get("eventType") or notice.get("notificationType") or notice.get("RecordType") or notice.get("reason")
    )
    match kind.lower():
        case "bounce" if "bounce" in notice:
            bounce = notice["bounce"]
            hard = str(bounce.get("bounceType", "")).lower() == "permanent"
            for one in bounce.get("bouncedRecipients", ()) if hard else ():
                yield _of(Reason.BOUNCE, one.get("emailAddress"), one.get("diagnosticCode"))
        case "complaint" if "complaint" in notice:
            for one in notice["complaint"].get("complainedRecipients", ()):
                yield _of(Reason.COMPLAINT, one.get("emailAddress"), notice["complaint"].get("complaintFeedbackType"))
        case "bounce" if "Email" in notice:
            hard = notice.get("Type") in {"HardBounce", "BadEmailAddress"}
            yield _of(Reason.BOUNCE, notice["Email"], notice.get("Description")) if hard else None
        case "spamcomplaint":
            yield _of(Reason.COMPLAINT, notice.get("Email"), notice.get("Description"))
        case "bounce" | "complaint" | "unsubscribe" as ours:
            event_id = _event_id(str(notice.get("event_id", "")))
            yield replace(_of(Reason(ours.upper()), notice.get("address"), notice.get("detail")), event_id=event_id)
        case _:
            yield None


def _of(reason: Reason, address: object, detail: object) -> Report:
    return Report(
        reason, printable(str(detail or reason.value.lower())), None, None if address is None else str(address)
    )


def _address(connection: Connection, report: Report) -> str | None:
    """Whose address a report is about: that of the mail that it names, else the one that it says."""
    if report.event_id is not None:
        body = connection.exec_driver_sql(_BODY, {"event_id": report.event_id}).scalar_one_or_none()
        if body is not None:
            said = message_from_bytes(body, policy=policy.SMTPUTF8).get("To")
            found = mail_address(None if said is None else str(said))
            return None if found is None else str(found)
    found = mail_address(report.address)
    return None if found is None else str(found)


# Only what went, or may have gone, can come back.
_BODY = """
    SELECT body FROM outbox_event
    WHERE event_id = %(event_id)s::uuid AND (state = 'DELIVERED' OR doubtful_since IS NOT NULL)
"""
