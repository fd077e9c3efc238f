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

from ticketflow_orch.formatting.mail_addresses import MailAddress
from ticketflow_orch.settings import Settings

_LONGEST_NAME = 100
_LONGEST_SUBJECT = 200
# What joins letters and emoji and is seen by what it joins; the flags of countries within countries are spelt in tags.
_JOINERS = "\u200c\u200d"
_SEEN_AS_ONE = re.compile("\U0001f3f4[\U000e0020-\U000e007e]+\U000e007f|.", re.DOTALL)


@dataclass(frozen=True, slots=True)
class MailOptions:
    """The address that mails come from, and the locale of organizations that have none.

    `unsubscribe`: where readers of reminders say that they want no more, `{token}` in it for the mail's own id.
    """

    sender: str
    locale: str = "en"
    unsubscribe: str | None = None

    @classmethod
    def configured(cls, settings: Settings) -> MailOptions:
        """The options that `settings` make."""
        return cls(settings.mail_sender, settings.mail_locale, settings.mail_unsubscribe)

    def unsubscribing(self, event_id: UUID) -> str | None:
        """Where the reader of the mail of this event says that they want no more; None: nowhere."""
        return None if self.unsubscribe is None else self.unsubscribe.replace("{token}", str(event_id))


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file that comes with a mail; `subtype` is that of its type `text/…`."""

    name: str
    subtype: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Letter:
    """What a mail says, to whom and in whose name; `sender` and `recipient` are addresses, checked before.

    So is `reply_to`, who reads answers. `unsubscribe`: a URL, of one word in ASCII, for readers who want no more of
    these. The texts may hold anything: what would end a header or hide in it is taken out.
    """

    sender: str
    sender_name: str
    recipient: MailAddress
    subject: str
    text: str
    html: str
    language: str
    attachments: Sequence[Attachment] = ()
    reply_to: MailAddress | None = None
    unsubscribe: str | None = None


def one_line(text: str, longest: int = _LONGEST_SUBJECT) -> str:
    """`text` in one line of at most `longest` characters, without any that does not print or turns the direction."""
    printed = "".join(one if len(one) > 1 or one.isprintable() or one in _JOINERS else " " for one in _units(text))
    # What looks encoded would be decoded when it becomes a header, line ends and all.
    line = " ".join(printed.replace("=?", "= ?").split())
    return line if len(line) <= longest else f"{line[: longest - 1].rstrip(_JOINERS + ' ')}…"


def _units(text: str) -> list[str]:
    return _SEEN_AS_ONE.findall(text)


def compose(event_id: UUID, occurred_at: datetime, letter: Letter) -> bytes:
    """The mail of an event, RFC 5322 with CRLF; its id, date and boundaries come from the event alone.

    A server that gets it twice can see that by the Message-ID, and nobody's holiday answers it.
    """
    beyond_ascii = letter.recipient.needs_smtputf8
    # A recipient that cannot be named in ASCII cannot be written to in it.
    message = EmailMessage(policy=policy.SMTPUTF8 if beyond_ascii else policy.SMTP)
    message["From"] = Address(one_line(letter.sender_name, _LONGEST_NAME), addr_spec=letter.sender)
    message["To"] = _header(letter.recipient)
    if letter.reply_to is not None and (beyond_ascii or not letter.reply_to.needs_smtputf8):
        message["Reply-To"] = _header(letter.reply_to)
    message["Subject"] = one_line(letter.subject)
    message["Date"] = occurred_at
    message["Message-ID"] = f"<{event_id}@{letter.sender.rpartition('@')[2]}>"
    message["Auto-Submitted"] = "auto-generated"
    message["X-Auto-Response-Suppress"] = "All"
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
    return _unsubscribing(letter.unsubscribe) + message.as_bytes()


def _header(address: MailAddress) -> Address:
    return Address(username=address.local_part, domain=address.domain)


def _unsubscribing(where: str | None) -> bytes:
    """RFC 2369, and RFC 8058 where one click is enough; not folded, since a URL in pieces is none to many readers."""
    if where is None:
        return b""
    one_click = "List-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n" if where.startswith("https:") else ""
    return f"List-Unsubscribe: <{where}>\r\n{one_click}".encode("ascii")
