"""A mail as the bytes that go to a server: complete, the same for the same event, and safe from what is put into it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from email import policy
from email.headerregistry import Address
from email.message import EmailMessage
from uuid import UUID

from ticketflow_orch.settings import Settings

_LONGEST_NAME = 100
_LONGEST_SUBJECT = 200
# Local parts with quotes or beyond ASCII are in no use that servers agree upon.
_ADDRESS = re.compile(r"([A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*)@([^@]+)")
_DOMAIN = re.compile(r"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*")
_LONGEST_LOCAL_PART = 64


@dataclass(frozen=True, slots=True)
class MailOptions:
    """The address that mails come from, and the locale of organizations that have none."""

    sender: str
    locale: str = "en"

    @classmethod
    def configured(cls, settings: Settings) -> MailOptions:
        """The options that `settings` make."""
        return cls(settings.mail_sender, settings.mail_locale)


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file that comes with a mail; `subtype` is that of its type `text/…`."""

    name: str
    subtype: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Letter:
    """What a mail says, to whom and in whose name; `sender` and `recipient` are addresses, checked before.

    The texts may hold anything: what would end a header or hide in it is taken out.
    """

    sender: str
    sender_name: str
    recipient: str
    subject: str
    text: str
    html: str
    language: str
    attachments: Sequence[Attachment] = ()


def mail_address(text: str | None) -> str | None:
    """`text` as one address that every server takes, its domain in ASCII; None when it is none."""
    match = _ADDRESS.fullmatch((text or "").strip())
    if match is None or len(match[1]) > _LONGEST_LOCAL_PART:
        return None
    try:
        domain = match[2].encode("idna").decode()
    except UnicodeError:
        return None
    return f"{match[1]}@{domain}" if _DOMAIN.fullmatch(domain) else None


def one_line(text: str, longest: int = _LONGEST_SUBJECT) -> str:
    """`text` in one line of at most `longest` characters, without any that does not print or turns the direction."""
    printed = "".join(character if character.isprintable() else " " for character in text)
    # What looks encoded would be decoded when it becomes a header, line ends and all.
    line = " ".join(printed.replace("=?", "= ?").split())
    return line if len(line) <= longest else f"{line[: longest - 1].rstrip()}…"


def compose(event_id: UUID, occurred_at: datetime, letter: Letter) -> bytes:
    """The mail of an event, RFC 5322 with CRLF; its id, date and boundaries come from the event alone.

    A server that gets it twice can tell by the Message-ID, and nobody's holiday answers it.
    """
    message = EmailMessage(policy=policy.SMTP)
    message["From"] = Address(one_line(letter.sender_name, _LONGEST_NAME), addr_spec=letter.sender)
    message["To"] = Address(addr_spec=letter.recipient)
    message["Subject"] = one_line(letter.subject)
    message["Date"] = occurred_at
    message["Message-ID"] = f"<{event_id}@{letter.sender.rpartition('@')[2]}>"
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(letter.text, charset="utf-8", cte="quoted-printable")
    message.add_alternative(letter.html, subtype="html", charset="utf-8", cte="quoted-printable")
    for attachment in letter.attachments:
        message.add_attachment(
            attachment.content,
            maintype="text",
            subtype=attachment.subtype,
            filename=attachment.name,
            params={"charset": "utf-8"},
        )
    # Set last: what is about the content would go down with the first part.
    message["Content-Language"] = letter.language
    for number, part in enumerate(part for part in message.walk() if part.is_multipart()):
        # Quoted-printable never holds "=_", nor does base64.
        part.set_boundary(f"=_{event_id.hex}_{number}")
    return message.as_bytes()
