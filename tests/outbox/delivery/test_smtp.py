"""Mail: what a failure means depends on the phase it comes in, and no header can become a command."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.outbox.delivery.messages import certificates, mail, message, no_commit
from tests.support.sinks.smtp_server import MODES, SmtpServer
from ticketflow_orch.outbox.delivery import FencedError, Outcome, Verdict
from ticketflow_orch.outbox.delivery.destinations import SmtpDestination
from ticketflow_orch.outbox.delivery.smtp import EnvelopeError, SmtpTransport, read_envelope


@pytest.fixture
def mail_server() -> Iterator[SmtpServer]:
    with SmtpServer() as mail_server:
        yield mail_server


@pytest.fixture
def transport(mail_server: SmtpServer) -> Iterator[SmtpTransport]:
    transport = transport_to(mail_server.port)
    yield transport
    transport.close()


def transport_to(port: int, secret: str | None = None, **options: Any) -> SmtpTransport:
    described = {
        "transport": "smtp",
        "host": "127.0.0.1",
        "port": port,
        "security": "none",
        "hello_name": "orch.ticketflow.example",
        "connect_timeout": 1,
        "command_timeout": 2,
        "answer_timeout": 2,
    }
    return SmtpTransport(SmtpDestination.model_validate(described | options), secret)


@pytest.mark.parametrize(
    ("mode", "verdict", "status"),
    [
        ("ok", Verdict.DELIVERED, 250),
        ("slow", Verdict.DELIVERED, 250),
        ("forwarded", Verdict.DELIVERED, 250),
        ("store then drop", Verdict.UNKNOWN, None),
        ("drop at dot", Verdict.UNKNOWN, None),
        ("silence", Verdict.UNKNOWN, None),
        ("dribble", Verdict.UNKNOWN, None),
        ("garbage", Verdict.UNKNOWN, None),
        ("endless reply", Verdict.UNKNOWN, None),
        ("refused at dot", Verdict.THROTTLED, 451),
        ("rejected at dot", Verdict.REJECTED, 554),
        ("closing at dot", Verdict.THROTTLED, 421),
        ("sender refused", Verdict.THROTTLED, 451),
        ("sender rejected", Verdict.REJECTED, 553),
        ("no login", Verdict.UNREACHED, 530),
        ("closing", Verdict.THROTTLED, 421),
        ("greylisted", Verdict.REFUSED, 450),
        ("no mailbox", Verdict.REJECTED, 550),
        ("drop at recipient", Verdict.UNREACHED, None),
        ("data refused", Verdict.THROTTLED, 451),
        ("data rejected", Verdict.REJECTED, 554),
    ],
)
def test_each_way_to_answer_has_one_verdict(
    mail_server: SmtpServer, transport: SmtpTransport, mode: str, verdict: Verdict, status: int | None
) -> None:
    mail_server.script.always(mode)
    began = time.monotonic()

    outcome = transport.send(message(mail()), no_commit)

    assert (outcome.verdict, outcome.status) == (verdict, status), outcome
    assert time.monotonic() - began < 10
    assert (outcome.error is None) == (verdict is Verdict.DELIVERED)
    assert "\n" not in (outcome.error or "")
    assert len(mail_server.stored) == MODES[mode].stores


@pytest.mark.parametrize("mode", MODES)
def test_a_message_that_went_wrong_does_not_spoil_the_next(
    mail_server: SmtpServer, transport: SmtpTransport, mode: str
) -> None:
    mail_server.script.once("*", mode)
    transport.send(message(mail("bo@example.org")), no_commit)
    mail_server.stored.clear()

    assert transport.send(message(mail()), no_commit).verdict is Verdict.DELIVERED
    assert [stored.recipient for stored in mail_server.stored] == ["ana@example.org"]


def test_what_is_stored_is_what_was_frozen(mail_server: SmtpServer, transport: SmtpTransport) -> None:
    body = mail(text=".\r\n..\r\nA line\r\n.hidden\r\n")
    mail_server.script.once("*", "store then drop", "ok")
    for _ in range(2):
        transport.send(message(body), no_commit)

    assert [(stored.sender, stored.recipient) for stored in mail_server.stored] == [
        ("tickets@ticketflow.example", "ana@example.org")
    ] * 2
    assert {stored.content for stored in mail_server.stored} == {body}


def test_a_body_without_a_last_line_end_gets_one(mail_server: SmtpServer, transport: SmtpTransport) -> None:
    body = b"From: a@example.org\r\nTo: b@example.org\r\n\r\nno end"
    transport.send(message(body), no_commit)
    assert mail_server.stored[0].content == body + b"\r\n"


class TestConnections:
    def test_one_is_kept_for_the_next_message(self, mail_server: SmtpServer, transport: SmtpTransport) -> None:
        mail_server.script.once("*", "ok", "no mailbox", "rejected at dot", "greylisted", "data refused", "ok")
        for _ in range(6):
            transport.send(message(mail()), no_commit)
        assert mail_server.connections == 1
        assert len(mail_server.stored) == 2

    def test_one_that_is_kept_still_takes_an_address_beyond_ascii(self) -> None:
        with SmtpServer(utf8=True) as mail_server:
            transport = transport_to(mail_server.port)
            for recipient in ("ana", "josé"):
                body = f"From: a@example.org\r\nTo: {recipient}@example.org\r\n\r\nHola\r\n".encode()
                assert transport.send(message(body), no_commit).verdict is Verdict.DELIVERED
            transport.close()
            assert mail_server.connections == 1

    def test_one_that_the_server_closed_meanwhile_is_replaced(
        self, mail_server: SmtpServer, transport: SmtpTransport
    ) -> None:
        transport.send(message(mail()), no_commit)
        mail_server.hang_up()
        assert transport.send(message(mail()), no_commit).verdict is Verdict.DELIVERED
        assert mail_server.connections == 2

    def test_each_thread_has_its_own(self, mail_server: SmtpServer, transport: SmtpTransport) -> None:
        recipients = [f"buyer{number}@example.org" for number in range(40)]
        with ThreadPoolExecutor(4) as threads:
            outcomes = list(threads.map(lambda to: transport.send(message(mail(to)), no_commit), recipients))
        assert {outcome.verdict for outcome in outcomes} == {Verdict.DELIVERED}
        assert sorted(stored.recipient for stored in mail_server.stored) == sorted(recipients)
        assert mail_server.connections <= 4

    @pytest.mark.parametrize("port", ["closed", "silent"])
    def test_a_server_that_cannot_be_reached_was_not_reached(self, port: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            number = listening.getsockname()[1]
            if port == "closed":
                listening.close()
            transport = transport_to(number, connect_timeout=0.3, command_timeout=0.3)
            began = time.monotonic()
            outcome = transport.send(message(mail()), pytest.fail)
        assert outcome.verdict is Verdict.UNREACHED
        assert time.monotonic() - began < 10

    def test_a_server_that_greets_with_an_error_was_not_reached(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as threads:

            def greet() -> None:
                connection, _ = listening.accept()
                with connection:
                    connection.sendall(b"554 5.3.2 not today\r\n")

            threads.submit(greet)
            outcome = transport_to(listening.getsockname()[1]).send(message(mail()), pytest.fail)
        assert outcome == Outcome(Verdict.UNREACHED, "127.0.0.1 answered 554 5.3.2 not today.", 554, "5.3.2 not today")


class TestCommit:
    def test_it_comes_once_right_before_the_content(self, mail_server: SmtpServer, transport: SmtpTransport) -> None:
        stored: list[int] = []
        transport.send(message(mail()), lambda: stored.append(len(mail_server.stored)))
        assert stored == [0]

    def test_nothing_is_delivered_when_the_lease_is_over(
        self, mail_server: SmtpServer, transport: SmtpTransport
    ) -> None:
        def fenced() -> None:
            raise FencedError

        with pytest.raises(FencedError):
            transport.send(message(mail()), fenced)
        assert transport.send(message(mail("bo@example.org")), no_commit).verdict is Verdict.DELIVERED
        assert [stored.recipient for stored in mail_server.stored] == ["bo@example.org"]

    @pytest.mark.parametrize("mode", ["closing", "greylisted", "no mailbox", "drop at recipient", "data refused"])
    def test_it_does_not_come_when_nothing_can_have_been_delivered(
        self, mail_server: SmtpServer, transport: SmtpTransport, mode: str
    ) -> None:
        mail_server.script.always(mode)
        transport.send(message(mail()), pytest.fail)


class TestTls:
    @pytest.mark.parametrize("security", ["starttls", "tls"])
    def test_mail_goes_encrypted_to_the_server_that_we_mean(self, tmp_path: Path, security: str) -> None:
        ca_file, context = certificates(tmp_path, "127.0.0.1")
        login = ("orch", "s3cret")
        with SmtpServer(context, implicit=security == "tls", login=login) as mail_server:
            options = {"security": security, "ca_file": str(ca_file), "username": "orch", "password": "SMTP_PASSWORD"}
            transport = transport_to(mail_server.port, "s3cret", **options)
            outcomes = [transport.send(message(mail()), no_commit).verdict for _ in range(2)]
            transport.close()
            refused = transport_to(mail_server.port, "wrong", **options).send(message(mail()), pytest.fail)

        assert outcomes == [Verdict.DELIVERED, Verdict.DELIVERED]
        assert (refused.verdict, refused.status) == (Verdict.UNREACHED, 535)
        assert "wrong" not in str(refused)

    @pytest.mark.parametrize("security", ["starttls", "tls"])
    def test_nothing_is_said_to_somebody_else(self, tmp_path: Path, security: str) -> None:
        ca_file, context = certificates(tmp_path, "other.example")
        with SmtpServer(context, implicit=security == "tls") as mail_server:
            transport = transport_to(mail_server.port, security=security, ca_file=str(ca_file))
            outcome = transport.send(message(mail()), pytest.fail)
        assert outcome.verdict is Verdict.UNREACHED
        assert "certificate verify failed" in str(outcome.error)

    def test_a_server_that_does_not_offer_it_gets_nothing(self, mail_server: SmtpServer) -> None:
        outcome = transport_to(mail_server.port, security="starttls").send(message(mail()), pytest.fail)
        assert outcome.verdict is Verdict.UNREACHED
        assert "STARTTLS" in str(outcome.error)

    def test_the_answer_to_the_dot_is_bounded_too(self, tmp_path: Path) -> None:
        ca_file, context = certificates(tmp_path, "127.0.0.1")
        with SmtpServer(context) as mail_server:
            mail_server.script.always("dribble")
            transport = transport_to(mail_server.port, security="starttls", ca_file=str(ca_file))
            began = time.monotonic()
            outcome = transport.send(message(mail()), no_commit)
        assert outcome.verdict is Verdict.UNKNOWN
        assert time.monotonic() - began < 10


class TestEnvelope:
    @pytest.mark.parametrize(
        ("headers", "fault"),
        [
            ("To: b@example.org", "The mail's From header has 0 addresses"),
            ("From: a@example.org", "The mail's To header has 0 addresses"),
            ("From: a@example.org\r\nTo: b@example.org, c@example.org", "The mail's To header has 2 addresses"),
            ("From: a@example.org\r\nTo: b@example.org\r\nTo: c@example.org", "The mail's To header has 2 addresses"),
            ("From: a@example.org\r\nTo: b@example.org\r\nCc: c@example.org", "The mail has a Cc header"),
            ("From: a@example.org\r\nTo: b@example.org\r\nBcc: c@example.org", "The mail has a Bcc header"),
            ("From: a@example.org\r\nTo: undisclosed:;", "The mail's To header has 0 addresses"),
            ("From: a@example.org\r\nTo: nobody", "which is no address that can be sent to"),
            ('From: a@example.org\r\nTo: "b@x.org> SIZE=1"@example.org', "which is no address that can be sent to"),
            (
                "From: a@example.org\r\nTo: =?utf-8?q?b=40x=2Eorg=3E?=@example.org",
                "which is no address that can be sent to",
            ),
            (
                "From: a@example.org\r\nTo: =?utf-8?q?b=40x=2Eorg=3E=0D=0ARCPT_TO=3A=3Cc?=@example.org",
                "The mail's headers cannot be read",
            ),
            ("From: a@example.org\r\nTo: b@example.org\nBcc: c@example.org", "a line end that is not CR LF"),
            ("From: a@example.org\r\nTo: b@example.org\rBcc: c@example.org", "a line end that is not CR LF"),
            ("From: a@example.org\r\nTo: b@example.org\r\n\r\nHi\r\n.\n\r\nMAIL FROM:<x@y>", "a line end that is not"),
        ],
    )
    def test_mail_from_one_to_one_is_sent_and_no_other(self, headers: str, fault: str) -> None:
        body = headers.encode() if "\r\n\r\n" in headers else f"{headers}\r\n\r\nHi\r\n".encode()
        with pytest.raises(EnvelopeError, match=fault):
            read_envelope(body)

    def test_what_is_no_mail_is_rejected_without_asking_anybody(self) -> None:
        outcome = transport_to(1).send(message(), pytest.fail)
        assert outcome.verdict is Verdict.REJECTED
        assert str(outcome.error).startswith("The mail's From header has 0 addresses")

    def test_a_name_with_an_address_in_it_is_only_a_name(self) -> None:
        body = b"From: a@example.org\r\nTo: =?utf-8?q?Eve=2C_x=40y=2Ez=3E=2C_Bcc=3A_c=40d=2Ee?= <b@example.org>\r\n\r\n"
        assert read_envelope(body).recipient == "b@example.org"

    @pytest.mark.parametrize("utf8", [True, False])
    def test_an_address_beyond_ascii_needs_a_server_that_takes_it(self, utf8: bool) -> None:
        body = "From: a@example.org\r\nTo: josé@example.org\r\nSubject: ñ\r\n\r\nHola, señor\r\n".encode()
        with SmtpServer(utf8=utf8) as mail_server:
            transport = transport_to(mail_server.port)
            outcome = transport.send(message(body), no_commit if utf8 else pytest.fail)
            transport.close()
        if utf8:
            assert outcome.verdict is Verdict.DELIVERED
            [stored] = mail_server.stored
            assert (stored.recipient, stored.content) == ("josé@example.org", body)
            assert {"BODY=8BITMIME", "SMTPUTF8"} <= set(stored.options)
        else:
            assert outcome == Outcome(
                Verdict.REJECTED, "The mail to josé@example.org needs SMTPUTF8, which the server does not offer."
            )


def test_a_mail_server_cannot_be_asked(mail_server: SmtpServer, transport: SmtpTransport) -> None:
    assert transport.look_up(message(mail())).verdict is Verdict.UNKNOWN
