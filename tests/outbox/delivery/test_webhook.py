"""Webhooks: each way in which a receiver can behave has one verdict, and what is sent is the same on each attempt."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from standardwebhooks import Webhook

from tests.outbox.delivery.messages import SECRETS, message, no_commit
from tests.outbox.delivery.webhooks import transport_to
from tests.support.sinks.http_receiver import Behaviour, HttpReceiver, ReceiverProcess
from ticketflow_orch.outbox.delivery import FencedError, Outcome, Verdict
from ticketflow_orch.outbox.delivery.webhook import WebhookTransport


@pytest.fixture
def transport(receiver: HttpReceiver) -> Iterator[WebhookTransport]:
    transport = transport_to(receiver.url)
    yield transport
    transport.close()


@pytest.mark.parametrize(
    ("mode", "verdict", "status"),
    [
        ("ok", Verdict.DELIVERED, 200),
        ("slow", Verdict.DELIVERED, 200),
        ("oversized", Verdict.DELIVERED, 200),
        ("dribble body", Verdict.DELIVERED, 200),
        ("break off", Verdict.UNKNOWN, 200),
        ("interim", Verdict.UNKNOWN, 103),
        ("redirect", Verdict.REFUSED, 301),
        ("see other", Verdict.UNKNOWN, 303),
        ("bad request", Verdict.REJECTED, 400),
        ("unauthorized", Verdict.REFUSED, 401),
        ("forbidden", Verdict.REFUSED, 403),
        ("not found", Verdict.REFUSED, 404),
        ("conflict", Verdict.UNKNOWN, 409),
        ("gone", Verdict.GONE, 410),
        ("too large", Verdict.REJECTED, 413),
        ("unprocessable", Verdict.REJECTED, 422),
        ("too early", Verdict.REFUSED, 425),
        ("too many", Verdict.THROTTLED, 429),
        ("500 after applying", Verdict.UNKNOWN, 500),
        ("502", Verdict.UNKNOWN, 502),
        ("busy until", Verdict.UNKNOWN, 503),
        ("unheard of", Verdict.UNKNOWN, 799),
        ("apply then drop", Verdict.UNKNOWN, None),
        ("drop", Verdict.UNKNOWN, None),
        ("silence", Verdict.UNKNOWN, None),
        ("garbage", Verdict.UNKNOWN, None),
        ("dribble", Verdict.UNKNOWN, None),
    ],
)
def test_each_way_to_answer_has_one_verdict(
    receiver: HttpReceiver, transport: WebhookTransport, mode: str, verdict: Verdict, status: int | None
) -> None:
    receiver.script.always(mode)
    began = time.monotonic()

    outcome = transport.send(message(), no_commit)

    assert (outcome.verdict, outcome.status) == (verdict, status)
    assert time.monotonic() - began < 10
    assert (outcome.error is None) == (verdict is Verdict.DELIVERED)
    assert len(outcome.response) <= 2000
    assert "\n" not in (outcome.error or "")


def test_what_was_applied_and_what_was_not_is_what_the_verdicts_say(
    receiver: HttpReceiver, transport: WebhookTransport
) -> None:
    verdicts = {}
    for mode in receiver.modes:
        sent = message()
        receiver.script.once(str(sent.event_id), mode)
        verdicts[mode] = (transport.send(sent, no_commit).verdict, str(sent.event_id) in receiver.applied)

    allowed = {
        Verdict.DELIVERED: {True},
        Verdict.REFUSED: {False},
        Verdict.THROTTLED: {False},
        Verdict.REJECTED: {False},
        Verdict.GONE: {False},
        Verdict.UNKNOWN: {True, False},
    }
    assert {mode: applied for mode, (verdict, applied) in verdicts.items() if applied not in allowed[verdict]} == {}


def test_the_request_is_what_standard_webhooks_wants(receiver: HttpReceiver) -> None:
    transport = transport_to(f"{receiver.url}/a%2Fb?c=d", headers={"Authorization": "TOKEN"})
    sent = message()

    transport.send(sent, no_commit)
    transport.close()

    [request] = receiver.requests
    headers = request.headers
    assert (request.method, request.target, request.body) == ("POST", "/hooks/a%2Fb?c=d", sent.body)
    assert headers["content-type"] == "application/json"
    assert headers["webhook-id"] == headers["idempotency-key"] == str(sent.event_id)
    assert headers["authorization"] == "Bearer 42"
    assert headers["user-agent"].startswith("ticketflow-orch/")
    assert headers["host"] == f"127.0.0.1:{receiver.port}"


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
def test_a_receiver_that_knows_one_of_the_secrets_is_satisfied(
    receiver: HttpReceiver, transport: WebhookTransport, secret: str
) -> None:
    sent = message()
    transport.send(sent, no_commit)

    [request] = receiver.requests
    assert Webhook(secret).verify(request.body, dict(request.headers)) == json.loads(sent.body)


def test_a_receiver_that_knows_another_secret_is_not(receiver: HttpReceiver, transport: WebhookTransport) -> None:
    transport.send(message(), no_commit)
    stranger = Webhook("whsec_" + base64.b64encode(b"s" * 32).decode())
    with pytest.raises(Exception, match="No matching signature found"):
        stranger.verify(receiver.requests[0].body, dict(receiver.requests[0].headers))


def test_id_key_and_bytes_are_the_same_on_each_attempt(receiver: HttpReceiver, transport: WebhookTransport) -> None:
    sent = message()
    receiver.script.once(str(sent.event_id), "502", "apply then drop", "500 after applying", "ok")

    for _ in range(4):
        transport.send(sent, no_commit)

    constant = {
        (request.body, request.headers["webhook-id"], request.headers["idempotency-key"])
        for request in receiver.requests
    }
    assert constant == {(sent.body, str(sent.event_id), str(sent.event_id))}
    assert receiver.applied == {str(sent.event_id): 3}


def test_patience_is_asked_for_in_seconds_or_until_an_instant(
    receiver: HttpReceiver, transport: WebhookTransport
) -> None:
    def patience(mode: str) -> float | None:
        receiver.script.always(mode)
        return transport.send(message(), no_commit).retry_after

    receiver.modes["for ever"] = Behaviour(429, headers={"Retry-After": "999999999"})
    receiver.modes["nonsense"] = Behaviour(429, headers={"Retry-After": "Fri, 99 Zzz"})
    receiver.modes["past"] = Behaviour(503, headers={"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"})
    assert [patience(mode) for mode in ("too many", "busy until", "for ever", "nonsense", "past", "502")] == [
        7,
        30,
        86_400,
        None,
        0,
        None,
    ]


def test_a_redirect_is_not_followed_and_only_its_host_is_told(
    receiver: HttpReceiver, transport: WebhookTransport
) -> None:
    receiver.script.always("redirect")
    outcome = transport.send(message(), no_commit)
    assert (
        outcome.error
        == "127.0.0.1 answered 301 Moved Permanently, a redirect to elsewhere.example, which is not followed."
    )
    assert len(receiver.requests) == 1


def test_an_answer_in_json_is_kept_whole_and_any_other_in_part(
    receiver: HttpReceiver, transport: WebhookTransport
) -> None:
    def response(body: bytes) -> str:
        receiver.modes["ok"] = Behaviour(200, body=body)
        return transport.send(message(), no_commit).response

    whole = json.dumps({"id": "po_1", "note": "é\n" * 1500}, indent=1).encode()
    assert json.loads(response(whole)) == json.loads(whole)
    assert response(b'{"cut": "' + b"x" * 70_000) == '{"cut": "' + "x" * 1991
    assert response(b"\xff\x00<b>\x1b[31m\r\n") == "\ufffd <b> [31m  "
    assert response(b"[" * 16_000) == "[" * 2000
    assert response(b"") == ""


def test_a_connection_is_kept_and_used_again(receiver: HttpReceiver, transport: WebhookTransport) -> None:
    for mode in ("ok", "unprocessable", "500 after applying", "ok"):
        receiver.script.always(mode)
        transport.send(message(), no_commit)
    assert receiver.connections == 1


def test_an_answer_that_was_not_read_to_its_end_does_not_spoil_the_next(
    receiver: HttpReceiver, transport: WebhookTransport
) -> None:
    first, second = message(), message()
    receiver.script.once(str(first.event_id), "oversized")
    assert transport.send(first, no_commit).verdict is Verdict.DELIVERED
    assert transport.send(second, no_commit).response == '{"received": true}'
    assert receiver.connections == 2


def test_an_answer_that_comes_after_an_interim_one_is_not_taken_for_that_to_the_next(
    receiver: HttpReceiver, transport: WebhookTransport
) -> None:
    first, second = message(), message()
    receiver.script.once(str(first.event_id), "interim")
    receiver.script.once(str(second.event_id), "unprocessable")
    transport.send(first, no_commit)
    time.sleep(0.2)
    assert transport.send(second, no_commit).verdict is Verdict.REJECTED


def test_several_threads_share_a_transport(receiver: HttpReceiver, transport: WebhookTransport) -> None:
    messages = [message() for _ in range(200)]
    with ThreadPoolExecutor(8) as threads:
        outcomes = list(threads.map(lambda sent: transport.send(sent, no_commit), messages))

    assert {outcome.verdict for outcome in outcomes} == {Verdict.DELIVERED}
    assert receiver.applied == {str(sent.event_id): 1 for sent in messages}
    assert {request.headers["webhook-id"]: request.body for request in receiver.requests} == {
        str(sent.event_id): sent.body for sent in messages
    }
    assert receiver.connections <= 8


def test_nothing_is_sent_when_the_lease_is_over(receiver: HttpReceiver, transport: WebhookTransport) -> None:
    def fenced() -> None:
        raise FencedError

    with pytest.raises(FencedError):
        transport.send(message(), fenced)
    assert receiver.requests == []
    assert transport.send(message(), no_commit).verdict is Verdict.DELIVERED


def test_the_commit_comes_once_and_before_anything_is_sent(receiver: HttpReceiver, transport: WebhookTransport) -> None:
    received: list[int] = []
    transport.send(message(), lambda: received.append(len(receiver.requests)))
    assert received == [0]


def test_a_receiver_in_a_process_of_its_own_applies_each_event_once_however_often_it_misbehaves() -> None:
    with ReceiverProcess() as receiver:
        receiver.script(mix=[{"apply then drop": 0.2, "500 after applying": 0.2, "drop": 0.1, "too many": 0.1}, 7])
        transport = transport_to(receiver.url)
        messages = [message() for _ in range(50)]
        for sent in messages:
            while transport.send(sent, no_commit).verdict is not Verdict.DELIVERED:
                pass
        transport.close()
        record = receiver.record()

    assert list(record["applied"]) == [str(sent.event_id) for sent in messages]
    assert record["played"]["ok"] == 50
    assert min(record["played"].values()) > 0
    assert sum(record["applied"].values()) > 50


class TestLookUp:
    @pytest.fixture
    def transport(self, receiver: HttpReceiver) -> Iterator[WebhookTransport]:
        url = f"http://127.0.0.1:{receiver.port}/payouts/{{id}}?payout={{aggregate_id}}"
        transport = transport_to(receiver.url, look_up_url=url)
        yield transport
        transport.close()

    def test_it_is_known_or_not(self, receiver: HttpReceiver, transport: WebhookTransport) -> None:
        sent = message()
        assert transport.look_up(sent).verdict is Verdict.REFUSED
        transport.send(sent, no_commit)
        assert transport.look_up(sent) == Outcome(Verdict.DELIVERED, None, 200, '{"id": "ours"}')

    @pytest.mark.parametrize(
        "mode", ["502", "forbidden", "redirect", "gone", "drop", "break off", "silence", "too many"]
    )
    def test_any_other_answer_says_nothing(
        self, receiver: HttpReceiver, transport: WebhookTransport, mode: str
    ) -> None:
        receiver.script.always(mode)
        outcome = transport.look_up(message())
        assert outcome.verdict is Verdict.UNKNOWN
        assert outcome.error is not None
        assert len(receiver.requests) == 1

    def test_the_question_is_signed_and_carries_our_reference(
        self, receiver: HttpReceiver, transport: WebhookTransport
    ) -> None:
        sent = message(aggregate_id="2026-03/org 7?x={id}")
        transport.look_up(sent)
        [request] = receiver.requests
        reference = "2026-03%2Forg%207%3Fx%3D%7Bid%7D"
        assert (request.method, request.target) == ("GET", f"/payouts/{sent.event_id}?payout={reference}")
        secret = SECRETS["TICKETFLOW_WEBHOOK_SECRET"]
        expected = Webhook(secret).sign(
            str(sent.event_id),
            datetime.fromtimestamp(int(request.headers["webhook-timestamp"]), UTC),
            "",
        )
        assert request.headers["webhook-signature"].split(" ")[0] == expected

    def test_a_destination_without_one_knows_nothing(self, receiver: HttpReceiver) -> None:
        assert transport_to(receiver.url).look_up(message()).verdict is Verdict.UNKNOWN
