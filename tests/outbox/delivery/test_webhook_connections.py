"""Whom a webhook is sent to: the address that was judged, by the name that was meant, and how long that may take."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.outbox.delivery.messages import certificates, message, no_commit
from tests.outbox.delivery.webhooks import transport_to
from tests.support.sinks.http_receiver import HttpReceiver
from ticketflow_orch.outbox.delivery import Outcome, Verdict
from ticketflow_orch.outbox.delivery.addresses import AddressError


@pytest.mark.parametrize("port", ["closed", "silent"])
def test_a_receiver_that_cannot_be_reached_has_refused(port: str) -> None:
    committed: list[None] = []
    with socket.create_server(("127.0.0.1", 0), backlog=1) as server:
        number = server.getsockname()[1]
        if port == "closed":
            server.close()
        transport = transport_to(f"https://127.0.0.1:{number}/", connect_timeout=0.3, deadline=0.5)
        began = time.monotonic()
        outcome = transport.send(message(), lambda: committed.append(None))
        transport.close()

    assert outcome.verdict is Verdict.UNREACHED
    assert outcome.status is None
    assert committed == []
    assert time.monotonic() - began < 10


def test_a_name_that_does_not_exist_is_refused() -> None:
    transport = transport_to("http://no-such-host.invalid/")
    outcome = transport.send(message(), no_commit)
    assert outcome.verdict is Verdict.UNREACHED
    assert outcome.error is not None
    assert outcome.error.startswith("no-such-host.invalid:80 cannot be reached: ")


@pytest.mark.parametrize(
    ("url", "asked"),
    [("https://[::1]/", "::1/443"), ("http://[::1]/a?b", "::1/80"), ("https://[::1]:8443/", "::1/8443")],
)
def test_an_address_of_version_6_needs_no_port(monkeypatch: pytest.MonkeyPatch, url: str, asked: str) -> None:
    seen = []

    def connect(host: str, port: int, *, allow_private: bool) -> Any:
        seen.append(f"{host}/{port}")
        raise AddressError("as far as that")

    monkeypatch.setattr("ticketflow_orch.outbox.delivery.webhook.connect", connect)
    assert transport_to(url).send(message(), no_commit) == Outcome(Verdict.UNREACHED, "as far as that")
    assert seen == [asked]


def test_a_resolver_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    woken = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: woken.wait(60) and [])
    transport = transport_to("http://slow.example/", connect_timeout=0.2)
    began = time.monotonic()
    outcome = transport.send(message(), no_commit)
    woken.set()
    assert outcome == Outcome(
        Verdict.UNREACHED, "slow.example:80 cannot be reached: its name was not resolved in time."
    )
    assert time.monotonic() - began < 10


def test_a_receiver_that_takes_our_bytes_slowly_takes_no_longer_than_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        transport = transport_to(f"http://127.0.0.1:{server.getsockname()[1]}/", deadline=0.5)
        began = time.monotonic()
        outcome = transport.send(message(b'"' + b"x" * 20_000_000 + b'"'), no_commit)
        transport.close()
    assert outcome.verdict is Verdict.UNKNOWN
    assert time.monotonic() - began < 10


class TestTls:
    def test_a_certificate_is_verified_for_the_name_though_an_address_is_connected_to(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ca_file, context = certificates(tmp_path, "receiver.example")
        resolve(monkeypatch, "127.0.0.1")
        with HttpReceiver(context) as receiver:
            transport = transport_to(f"https://receiver.example:{receiver.port}/hooks", ca_file=str(ca_file))
            outcome = transport.send(message(), no_commit)
            transport.close()
            assert outcome.verdict is Verdict.DELIVERED, outcome
            assert receiver.requests[0].headers["host"] == f"receiver.example:{receiver.port}"

    @pytest.mark.parametrize(("name", "trusted"), [("other.example", True), ("receiver.example", False)])
    def test_nothing_is_sent_to_somebody_else(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, trusted: bool
    ) -> None:
        ca_file, context = certificates(tmp_path, name)
        resolve(monkeypatch, "127.0.0.1")
        with HttpReceiver(context) as receiver:
            options = {"ca_file": str(ca_file)} if trusted else {}
            transport = transport_to(f"https://receiver.example:{receiver.port}/hooks", **options)
            outcome = transport.send(message(), no_commit)
            transport.close()
            assert outcome.verdict is Verdict.UNREACHED
            assert "certificate verify failed" in str(outcome.error)
            assert receiver.requests == []

    @pytest.mark.parametrize("mode", ["dribble", "silence", "dribble body"])
    def test_the_deadline_holds(self, tmp_path: Path, mode: str) -> None:
        ca_file, context = certificates(tmp_path, "127.0.0.1")
        with HttpReceiver(context) as receiver:
            receiver.script.always(mode)
            transport = transport_to(receiver.url, ca_file=str(ca_file))
            began = time.monotonic()
            transport.send(message(), no_commit)
            transport.close()
            assert time.monotonic() - began < 10
            assert len(receiver.requests) == 1


class TestPrivateAddresses:
    @pytest.mark.parametrize(
        "host", ["127.0.0.1", "localhost", "[::1]", "2130706433", "0x7f.1", "0.0.0.0", "[::ffff:127.0.0.1]"]
    )
    def test_our_own_machine_is_not_asked(self, receiver: HttpReceiver, host: str) -> None:
        transport = transport_to(f"https://{host}:{receiver.port}/", allow_private=False)
        outcome = transport.send(message(), no_commit)
        assert outcome.verdict is Verdict.UNREACHED
        assert "which is no public address" in str(outcome.error)
        assert receiver.connections == 0

    def test_a_name_that_leads_into_our_network_is_not_asked(
        self, receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        resolve(monkeypatch, "127.0.0.1")
        transport = transport_to(f"https://innocent.example:{receiver.port}/", allow_private=False)
        outcome = transport.send(message(), no_commit)
        assert outcome == Outcome(
            Verdict.UNREACHED,
            "innocent.example is at 127.0.0.1, which is no public address; if it is ours, say allow_private = true.",
        )
        assert receiver.connections == 0

    def test_a_name_is_resolved_once_so_that_what_was_judged_is_what_is_asked(
        self, receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Nothing listens at the second address: who resolved again would be refused.
        asked = resolve(monkeypatch, "127.0.0.1", "127.0.0.9")
        transport = transport_to(f"http://fickle.example:{receiver.port}/")
        outcome = transport.send(message(), no_commit)
        transport.close()
        assert outcome.verdict is Verdict.DELIVERED
        assert asked == ["fickle.example"]
        assert receiver.requests[0].headers["host"] == f"fickle.example:{receiver.port}"

    def test_one_private_address_among_public_ones_is_enough_to_refuse(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            socket, "getaddrinfo", lambda *_, **__: [(2, 1, 6, "", (ip, 443)) for ip in ("8.8.8.8", "10.0.0.5")]
        )
        outcome = transport_to("https://both.example/", allow_private=False).send(message(), no_commit)
        assert str(outcome.error).startswith("both.example is at 10.0.0.5, which is no public address")


def resolve(monkeypatch: pytest.MonkeyPatch, *answers: str) -> list[str]:
    """Let any name be at the first of `answers`, then at the next, and so on; returns the names asked for."""
    asked: list[str] = []

    def getaddrinfo(host: str, port: int, *_: object, **__: object) -> list[Any]:
        asked.append(host)
        answer = answers[min(len(asked), len(answers)) - 1]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (answer, port))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked
