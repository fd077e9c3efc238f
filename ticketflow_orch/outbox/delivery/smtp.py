"""The transport to mail servers, one phase at a time, so that it is known what a failure means."""

from __future__ import annotations

import re
import smtplib
import socket
import ssl
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from email import policy
from email.errors import MessageError
from email.message import EmailMessage
from email.parser import BytesHeaderParser

from ticketflow_orch.formatting.mail_addresses import mail_address
from ticketflow_orch.outbox.delivery import Commit, Message, Outcome, Verdict, printable
from ticketflow_orch.outbox.delivery.addresses import AddressError, connect
from ticketflow_orch.outbox.delivery.destinations import SmtpDestination
from ticketflow_orch.outbox.delivery.sockets import tls_context, within

_PORTS = {"starttls": 587, "tls": 465, "none": 25}
_BARE_LINE_END = re.compile(rb"(?<!\r)\n|\r(?!\n)")
_OK = 250
_FORWARDED = 251
# 5xx that are about ourselves: no login, no TLS (RFC 3207, 4954).
_OURSELVES = (530, 534, 535, 538)
# Too much from us at present: whatever code, where its first words say so (RFC 3463: 4.3 the system, 4.7 its policy).
_TOO_MUCH = (421, 454)
_TOO_MUCH_SAID = re.compile(rb"4\.[37]\.[0-9]")
_REPLY_LINES = 100
_REPLY_LINE = 2048
_KEPT = 2000


class SmtpTransport:
    """Hands the frozen bytes of a mail to a server, for the one recipient in its To header.

    Until the message itself is on its way nothing can have been delivered: 5xx about the sender, the recipient or the
    message is REJECTED, 421, 454, 4.3.x and 4.7.x mean that the server takes no more from us at present (THROTTLED),
    any other 4xx is REFUSED, and whatever is about ourselves (connection, TLS, login) UNREACHED, since somebody will
    fix it. From then on only the answer to the final dot says; where that is lost, nobody knows (RFC 1047).

    Connections are kept for the next message, as many as there are messages in flight at once.
    """

    def __init__(self, destination: SmtpDestination, password: str | None) -> None:
        self._destination = destination
        self._password = password
        self._context = None if destination.security == "none" else tls_context(destination.ca_file)
        self._dialogue = (destination.connect_timeout + destination.command_timeout).total_seconds()
        self._idle: deque[_Session] = deque()

    def send(self, message: Message, commit: Commit) -> Outcome:
        """Hand over `message`; ends within the destination's `limit`."""
        try:
            envelope = read_envelope(message.body)
        except EnvelopeError as error:
            return Outcome(Verdict.REJECTED, str(error))
        with within(self._dialogue):
            try:
                session = self._session()
            except (AddressError, OSError) as error:
                return self._answered(Verdict.THROTTLED if _is_busy(error) else Verdict.UNREACHED, error)
            try:
                _address(session, envelope)
            except OSError as error:
                self._keep_or_close(session, error)
                return self._answered(_definite(error, otherwise=Verdict.UNREACHED), error)
        try:
            commit()
        except BaseException:
            # Without the final dot the server drops what it was promised.
            session.close()
            raise
        return self._hand_over(session, message.body)

    def look_up(self, message: Message) -> Outcome:
        """UNKNOWN: a mail server does not say what it was given."""
        return Outcome(Verdict.UNKNOWN, f"A mail server cannot be asked for event {message.event_id}.")

    def close(self) -> None:
        """Say goodbye on idle connections."""
        while self._idle:
            session = self._idle.pop()
            with suppress(OSError), within(1):
                session.quit()
            session.close()

    def _session(self) -> _Session:
        with suppress(IndexError):
            while True:
                session = self._idle.pop()
                with suppress(OSError):
                    if session.rset()[0] == _OK:
                        return session
                # The server closed it meanwhile, or is about to.
                session.close()
        return self._connected()

    def _connected(self) -> _Session:
        target = self._destination
        session = _Session(target, self._context)
        try:
            _expect(220, session.connect(target.host, target.port or _PORTS[target.security]))
            if self._context is not None and target.security == "starttls":
                session.starttls(context=self._context)
            session.ehlo_or_helo_if_needed()
            if target.username is not None and self._password is not None:
                session.login(target.username, self._password)
        except BaseException:
            session.close()
            raise
        return session

    def _hand_over(self, session: _Session, body: bytes) -> Outcome:
        try:
            with within(self._destination.answer_timeout.total_seconds()):
                session.send(_as_content(body))
                _expect(_OK, session.getreply())
        except OSError as error:
            self._keep_or_close(session, error)
            return self._answered(_definite(error, otherwise=Verdict.UNKNOWN), error)
        self._idle.append(session)
        return Outcome(Verdict.DELIVERED, None, _OK, session.last_reply)

    def _keep_or_close(self, session: _Session, error: OSError) -> None:
        # After an answer the dialogue can go on with the next message, and where it cannot, RSET finds out.
        if isinstance(error, smtplib.SMTPResponseException | NotOfferedError):
            self._idle.append(session)
        else:
            session.close()

    def _answered(self, verdict: Verdict, error: AddressError | OSError) -> Outcome:
        if isinstance(error, smtplib.SMTPResponseException):
            said = _text(error.smtp_error)
            sentence = f"{self._destination.host} answered {error.smtp_code} {said[:200]}".rstrip(". ")
            return Outcome(verdict, f"{sentence}.", error.smtp_code, said, own_fault=verdict is Verdict.REFUSED)
        if isinstance(error, AddressError | NotOfferedError):
            return Outcome(verdict, str(error))
        cause = "its time was over" if isinstance(error, TimeoutError) else printable(str(error))[:200].rstrip(". ")
        return Outcome(verdict, f"The dialogue with {self._destination.host} broke off: {cause}.")


class EnvelopeError(Exception):
    """The bytes are no mail that can be sent; the message is one sentence."""


class NotOfferedError(OSError):
    """The message needs what the server does not offer; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """From whom to whom, and what the message asks of servers. `size` is in bytes."""

    sender: str
    recipient: str
    size: int
    needs: tuple[str, ...]


def read_envelope(body: bytes) -> Envelope:
    """The envelope of the mail `body`, from its own headers.

    Raises:
        EnvelopeError: it has not exactly one sender and one recipient, or holds what could be read as commands.
    """
    if _BARE_LINE_END.search(body):
        # Servers disagree on whether it ends a line, which is how one message is made to look like two.
        raise EnvelopeError("The mail has a line end that is not CR LF; render it with email.policy.SMTP.")
    try:
        headers = BytesHeaderParser(policy=policy.SMTP).parsebytes(body)
        copies = [name for name in ("Cc", "Bcc") if name in headers]
        sender, recipient = _only(headers, "From"), _only(headers, "To")
    except (MessageError, ValueError, LookupError):
        raise EnvelopeError("The mail's headers cannot be read; render them with email.policy.SMTP.") from None
    if copies:
        raise EnvelopeError(f"The mail has a {copies[0]} header; write one mail to each recipient.")
    needs = [] if body.isascii() else ["8BITMIME"]
    if not (sender.isascii() and recipient.isascii() and body.partition(b"\r\n\r\n")[0].isascii()):
        needs.append("SMTPUTF8")
    return Envelope(sender, recipient, len(body), tuple(needs))


def _only(headers: EmailMessage, name: str) -> str:
    found = [address.addr_spec for value in headers.get_all(name, []) for address in value.addresses]
    if len(found) != 1:
        raise EnvelopeError(f"The mail's {name} header has {len(found)} addresses; write one mail from one to one.")
    # The parser leaves bytes beyond ASCII as surrogates.
    written = str(found[0]).encode(errors="surrogateescape").decode()
    # It becomes part of a command: what could end or extend that is no address.
    address = mail_address(written)
    if address is None:
        raise EnvelopeError(f"The mail's {name} header has {written!r}, which is no address that can be sent to.")
    return str(address)


def _address(session: _Session, envelope: Envelope) -> None:
    for need in envelope.needs:
        if not session.has_extn(need):
            raise NotOfferedError(f"The mail to {envelope.recipient} needs {need}, which the server does not offer.")
    offered = [f"SIZE={envelope.size}"] if session.has_extn("SIZE") else []
    options = [*offered, *("BODY=8BITMIME" if need == "8BITMIME" else need for need in envelope.needs)]
    _expect(_OK, session.docmd(" ".join([f"MAIL FROM:<{envelope.sender}>", *options])))
    _expect(_OK, session.docmd(f"RCPT TO:<{envelope.recipient}>"))
    _expect(354, session.docmd("DATA"))


def _expect(wanted: int, reply: tuple[int, bytes]) -> None:
    code, said = reply
    if code != wanted and (wanted, code) != (_OK, _FORWARDED):
        raise smtplib.SMTPResponseException(code, said)


def _definite(error: OSError, *, otherwise: Verdict) -> Verdict:
    if isinstance(error, NotOfferedError):
        return Verdict.REJECTED
    if isinstance(error, smtplib.SMTPResponseException):
        if error.smtp_code in _OURSELVES:
            return Verdict.UNREACHED
        match error.smtp_code // 100:
            case 5:
                return Verdict.REJECTED
            case 4 if error.smtp_code in _TOO_MUCH or _says_too_much(error):
                return Verdict.THROTTLED
            case 4:
                return Verdict.REFUSED
    return otherwise


def _is_busy(error: Exception) -> bool:
    """Whether the server is there, and takes no more connections from us at present."""
    return isinstance(error, smtplib.SMTPResponseException) and error.smtp_code == _TOO_MUCH[0]


def _says_too_much(error: smtplib.SMTPResponseException) -> bool:
    said = error.smtp_error
    return _TOO_MUCH_SAID.match(said.encode() if isinstance(said, str) else said) is not None


def _as_content(body: bytes) -> bytes:
    ended = body if body.endswith(b"\r\n") else body + b"\r\n"
    return re.sub(rb"(?m)^\.", b"..", ended) + b".\r\n"


def _text(said: bytes | str) -> str:
    return printable(said if isinstance(said, str) else said.decode(errors="replace"))[:_KEPT]


class _Session(smtplib.SMTP):
    """A connection that waits no longer than it may, and reads no more than a reply can be."""

    def __init__(self, destination: SmtpDestination, context: ssl.SSLContext | None) -> None:
        # smtplib would otherwise ask the resolver for our own name.
        super().__init__(local_hostname=destination.hello_name or socket.gethostname())
        self._host = destination.host
        self._destination = destination
        self._context = context
        self.command_encoding = "utf-8"
        self.last_reply = ""

    def _get_socket(self, host: str, port: int, timeout: float | None) -> socket.socket:  # noqa: ARG002
        with within(self._destination.connect_timeout.total_seconds()):
            made = connect(host, port, allow_private=True)
        if self._context is None or self._destination.security != "tls":
            return made
        return self._context.wrap_socket(made, server_hostname=host)

    def rset(self) -> tuple[int, bytes]:
        """Forget the message that was begun."""
        try:
            return super().rset()
        finally:
            # smtplib takes every further message for one of ASCII addresses.
            self.command_encoding = "utf-8"

    def getreply(self) -> tuple[int, bytes]:
        """The next reply: its code, and its lines without it.

        Raises:
            SMTPServerDisconnected: none came, or something that is none, which leaves nothing to talk about.
        """
        if self.sock is None:
            raise smtplib.SMTPServerDisconnected("the connection is closed")
        if self.file is None:
            self.file = self.sock.makefile("rb")
        said = []
        for _ in range(_REPLY_LINES):
            line = self.file.readline(_REPLY_LINE)
            match = re.fullmatch(rb"([2-5][0-9]{2})(?:([ -])(.*))?\r?\n", line, re.DOTALL)
            if match is None:
                break
            said.append((match[3] or b"").strip())
            if match[2] != b"-":
                self.last_reply = _text(b" ".join(said))
                return int(match[1]), b"\n".join(said)
        raise smtplib.SMTPServerDisconnected("it said nothing more, or nothing that is a reply")
