"""A mail server that stores what it accepts, and misbehaves on request: `with SmtpServer() as server`."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from email import message_from_bytes
from typing import Any, Literal

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from tests.support.sinks.script import Script

Phase = Literal["MAIL", "RCPT", "DATA", "DOT"]


@dataclass(frozen=True)
class Behaviour:
    """Which command is answered how, and what happens after the final dot, which is the end of the message."""

    at: Phase = "DOT"
    answer: str = "250 2.0.0 stored"
    stores: bool = False
    ending: Literal["answer", "drop", "silence", "dribble"] = "answer"
    delay: float = 0


MODES = {
    "ok": Behaviour(stores=True),
    "slow": Behaviour(stores=True, delay=0.3),
    "store then drop": Behaviour(stores=True, ending="drop"),
    "drop at dot": Behaviour(ending="drop"),
    "silence": Behaviour(stores=True, ending="silence"),
    "dribble": Behaviour(stores=True, ending="dribble"),
    "no greeting": Behaviour("MAIL", ending="silence"),
    "garbage": Behaviour(answer="what was that?", stores=True),
    "endless reply": Behaviour(answer="250-more\r\n" * 5000 + "250 at last", stores=True),
    "refused at dot": Behaviour(answer="451 4.3.0 try again"),
    "rejected at dot": Behaviour(answer="554 5.7.1 no spam"),
    "closing at dot": Behaviour(answer="421 4.3.2 closing"),
    "sender refused": Behaviour("MAIL", "451 4.3.0 later"),
    "sender rejected": Behaviour("MAIL", "553 5.1.8 no such sender"),
    "no login": Behaviour("MAIL", "530 5.7.0 authentication required"),
    "closing": Behaviour("MAIL", "421 4.3.2 closing", ending="drop"),
    "greylisted": Behaviour("RCPT", "450 4.2.0 greylisted"),
    "no mailbox": Behaviour("RCPT", "550 5.1.1 no such user"),
    "forwarded": Behaviour("RCPT", "251 2.1.5 will forward", stores=True),
    "drop at recipient": Behaviour("RCPT", ending="drop"),
    "data refused": Behaviour("DATA", "451 4.3.0 no room now"),
    "data rejected": Behaviour("DATA", "554 5.5.1 no valid recipients"),
}


@dataclass(frozen=True, slots=True)
class Mail:
    """A message as it was stored."""

    sender: str
    recipient: str
    options: tuple[str, ...]
    content: bytes


# What aiosmtpd calls by such names is named so.
# ruff: noqa: N802


class SmtpServer:
    """Serves 127.0.0.1 from a thread of its own; scripted by recipient, or for any message by "*".

    What is to happen before the recipient is known can only be scripted for any message. With `tls` the server wants
    STARTTLS, or speaks TLS from the first byte if `implicit`; `login` is who may send.
    """

    def __init__(
        self,
        tls: ssl.SSLContext | None = None,
        *,
        implicit: bool = False,
        login: tuple[str, str] | None = None,
        utf8: bool = True,
    ) -> None:
        self.script = Script()
        self.stored: list[Mail] = []
        self.connections = 0
        self._login = login
        self._controller = _Controller(
            self,
            hostname="127.0.0.1",
            port=0,
            ready_timeout=60,
            server_hostname="mail.example",
            enable_SMTPUTF8=utf8,
            ssl_context=tls if implicit else None,
            tls_context=None if implicit else tls,
            require_starttls=tls is not None and not implicit,
            # aiosmtpd does not see TLS that is there from the first byte.
            auth_required=login is not None and not implicit,
            auth_require_tls=not implicit,
            authenticator=self._authenticated,
        )

    @property
    def port(self) -> int:
        return self._controller.port

    def __enter__(self) -> SmtpServer:
        self._controller.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._controller.stop()

    def hang_up(self) -> None:
        """Close all connections, as servers do with idle ones."""

        async def close() -> None:
            for session in list(self._controller.sessions):
                if session.transport is not None:
                    session.transport.abort()

        asyncio.run_coroutine_threadsafe(close(), self._controller.loop).result(60)

    async def handle_MAIL(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        envelope.behaviour = MODES[self.script.next("*")]
        if envelope.behaviour.at == "MAIL":
            return await _end(server, envelope.behaviour)
        envelope.mail_from = address
        envelope.mail_options.extend(options)
        return "250 2.1.0 go on"

    async def handle_RCPT(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        scripted = self.script.special(address)
        envelope.behaviour = MODES[scripted] if scripted else envelope.behaviour
        if envelope.behaviour.at == "RCPT" and not envelope.behaviour.stores:
            return await _end(server, envelope.behaviour)
        envelope.rcpt_tos.append(address)
        return envelope.behaviour.answer if envelope.behaviour.at == "RCPT" else "250 2.1.5 go on"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        behaviour = envelope.behaviour
        await asyncio.sleep(behaviour.delay)
        if behaviour.stores:
            [recipient] = envelope.rcpt_tos
            content = bytes(envelope.original_content)
            self.stored.append(Mail(envelope.mail_from, recipient, tuple(envelope.mail_options), content))
        return await _end(server, behaviour) if behaviour.at == "DOT" else "250 2.0.0 stored"

    def _authenticated(
        self, _server: SMTP, _session: Session, _envelope: Envelope, _how: str, login: Any
    ) -> AuthResult:
        assert isinstance(login, LoginPassword)
        known = (login.login.decode(), login.password.decode()) == self._login
        return AuthResult(success=known, handled=known)


async def _end(server: SMTP, behaviour: Behaviour) -> str:
    match behaviour.ending:
        case "drop":
            if behaviour.answer.startswith("421"):
                await server.push(behaviour.answer)
                server.transport.close()
            else:
                server.transport.abort()
            await asyncio.sleep(3600)  # cancelled as soon as the connection is lost
        case "silence":
            await asyncio.sleep(3600)
        case "dribble":
            for byte in b"250-" + b"x" * 1000:
                server.transport.write(bytes([byte]))
                await asyncio.sleep(0.05)
    return behaviour.answer


class _Smtp(SMTP):
    async def smtp_DATA(self, arg: str) -> None:
        behaviour = getattr(self.envelope, "behaviour", None)
        if behaviour is not None and behaviour.at == "DATA":
            await self.push(await _end(self, behaviour))
        else:
            await super().smtp_DATA(arg)


class _Controller(Controller):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.sessions: list[SMTP] = []

    def factory(self) -> SMTP:
        self.handler.connections += 1
        session = _Smtp(self.handler, **self.SMTP_kwargs)
        self.sessions.append(session)
        return session

    def _trigger_server(self) -> None:
        self.port = self.server.sockets[0].getsockname()[1]
        super()._trigger_server()
        self.handler.connections = 0


def message_ids(server: SmtpServer) -> list[str]:
    """The Message-IDs of the mails that it took, in their order."""
    return [str(message_from_bytes(mail.content)["Message-ID"]) for mail in server.stored]
