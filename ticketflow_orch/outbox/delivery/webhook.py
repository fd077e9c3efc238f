"""The transport to HTTP receivers: signed POSTs, as Standard Webhooks has them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from http.client import HTTP_PORT, HTTPS_PORT, HTTPException
from importlib.metadata import version
from urllib.parse import quote, urlsplit
from uuid import UUID

import urllib3
from urllib3 import BaseHTTPResponse, HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError

from ticketflow_orch.outbox.delivery import Commit, Message, Outcome, Verdict, printable
from ticketflow_orch.outbox.delivery.addresses import AddressError, connect
from ticketflow_orch.outbox.delivery.destinations import WebhookDestination, WebhookSecrets
from ticketflow_orch.outbox.delivery.sockets import BoundedSocket, tls_context, within

# What is read of an answer, kept of one that is JSON (which somebody may have to understand), and of any other.
READ_BYTES = 64 * 1024
KEPT_JSON = 16 * 1024
KEPT = 2000
# A receiver may ask for patience, not for oblivion.
LONGEST_PATIENCE = 86_400.0
IDLE_CONNECTIONS = 32

# It is about this content, and the content never changes. Other 4xx are about how the receiver, or our way to it, is
# set up, which somebody will fix.
_REJECTED = {
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    HTTPStatus.UNPROCESSABLE_ENTITY,
}
# An earlier attempt is in progress; "found" and "see other" may be the answer to a request that was processed
# (RFC 9110, 15.4.4).
_UNCERTAIN = {HTTPStatus.CONFLICT, HTTPStatus.FOUND, HTTPStatus.SEE_OTHER}
_USER_AGENT = f"ticketflow-orch/{version('ticketflow-orch')}"


class WebhookTransport:
    """POSTs the frozen bytes of an event, always under the same id and idempotency key.

    A definite answer is one to this very request. A receiver that answers 5xx, or not at all, may have done what it
    was asked before; one that answers 409 is working on it, for an earlier attempt: both are UNKNOWN. Redirects are not
    followed: the one who answers for the URL would choose who reads our events.
    """

    def __init__(self, destination: WebhookDestination, secrets: WebhookSecrets) -> None:
        self._destination = destination
        self._secrets = secrets
        self._host = _Host(destination, destination.url)
        self._look_up_host = _Host(destination, destination.look_up_url) if destination.look_up_url else None

    def send(self, message: Message, commit: Commit) -> Outcome:
        """POST `message`; ends within the destination's deadline."""
        request = _Request("POST", self._destination.url, message.body, self._headers(message, message.body))
        attempt = _Attempt(self._destination, commit)
        try:
            answer = self._host.ask(request, attempt)
        except _NoAnswerError as error:
            return Outcome(Verdict.UNKNOWN if attempt.sent else Verdict.UNREACHED, str(error))
        return _outcome(self._host.name, answer)

    def look_up(self, message: Message) -> Outcome:
        """GET the `look_up_url` with our reference: 200 says it is there, 404 that it is not; what it says is kept."""
        url, host = self._destination.look_up_url, self._look_up_host
        if url is None or host is None:
            return Outcome(Verdict.UNKNOWN, f"{self._host.name} has no look_up_url.")
        for name, reference in (("id", str(message.event_id)), ("aggregate_id", message.aggregate_id)):
            url = url.replace(f"{{{name}}}", quote(reference, safe=""))
        try:
            request = _Request("GET", url, None, self._headers(message, b""))
            answer = host.ask(request, _Attempt(self._destination, _nothing))
        except _NoAnswerError as error:
            return Outcome(Verdict.UNKNOWN, str(error))
        return _found(host.name, answer)

    def close(self) -> None:
        """Close idle connections."""
        self._host.close()
        if self._look_up_host is not None:
            self._look_up_host.close()

    def _headers(self, message: Message, body: bytes) -> dict[str, str]:
        # Receivers refuse old timestamps, so this is the time of the attempt, by the clock on the wall.
        timestamp = str(int(time.time()))
        return {
            "Content-Type": "application/json",
            "webhook-id": str(message.event_id),
            "webhook-timestamp": timestamp,
            "webhook-signature": signatures(self._secrets.keys, message.event_id, timestamp, body),
            "Idempotency-Key": str(message.event_id),
            "User-Agent": _USER_AGENT,
            **self._secrets.headers,
        }


def signatures(keys: tuple[bytes, ...], event_id: UUID, timestamp: str, body: bytes) -> str:
    """One signature a key, so that a receiver which knows any of them is satisfied."""
    signed = f"{event_id}.{timestamp}.".encode() + body
    digests = (hmac.digest(key, signed, hashlib.sha256) for key in keys)
    return " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    url: str
    body: bytes | None
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Answer:
    """`broken`: why its body broke off, where that was not for want of time or room."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    broken: str | None = None


@dataclass(slots=True)
class _Attempt:
    """`sent`: the receiver may have got something of it."""

    destination: WebhookDestination
    commit: Commit
    sent: bool = False


class _NoAnswerError(Exception):
    """No answer came, for a reason that is one sentence."""


# urllib3 makes and keeps the connections; by this they know on whose behalf they are used.
_attempt: ContextVar[_Attempt] = ContextVar("attempt")


class _Connection(HTTPConnection):
    """Goes only to addresses that were judged, and commits right before the first byte of a request."""

    def _new_conn(self) -> BoundedSocket:
        destination = _attempt.get().destination
        with within(destination.connect_timeout.total_seconds()):
            return connect(self._dns_host, self.port, allow_private=destination.allow_private)

    def putrequest(self, method: str, url: str, skip_host: bool = False, skip_accept_encoding: bool = False) -> None:
        if self.is_closed:
            self.connect()
        attempt = _attempt.get()
        attempt.commit()
        attempt.sent = True
        super().putrequest(method, url, skip_host, skip_accept_encoding)


class _TlsConnection(_Connection, HTTPSConnection):
    pass


class _HttpPool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _HttpsPool(HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


class _Host:
    """The host of a URL, asked over as many connections as are used at once, which are kept."""

    def __init__(self, destination: WebhookDestination, url: str) -> None:
        parts = urlsplit(url)
        idle = max(IDLE_CONNECTIONS, destination.concurrency)
        self.name = str(parts.hostname)
        self._pool: HTTPConnectionPool
        # Said outright: without a port the end of an IPv6 address is taken for one.
        if parts.scheme == "https":
            context = tls_context(destination.ca_file)
            port = parts.port or HTTPS_PORT
            self._pool = _HttpsPool(self.name, port, maxsize=idle, ssl_context=context)
        else:
            self._pool = _HttpPool(self.name, parts.port or HTTP_PORT, maxsize=idle)
        self._seconds = destination.deadline.total_seconds()

    def ask(self, request: _Request, attempt: _Attempt) -> _Answer:
        """The answer to `request`.

        Raises:
            _NoAnswerError: none came in time.
        """
        token = _attempt.set(attempt)
        try:
            with within(self._seconds):
                return _read(self._open(request))
        except AddressError as error:
            raise _NoAnswerError(str(error)) from None
        except (HTTPError, HTTPException, OSError) as error:
            raise _NoAnswerError(f"{self.name} gave no answer: {_cause(error)}.") from None
        finally:
            _attempt.reset(token)

    def close(self) -> None:
        self._pool.close()

    def _open(self, request: _Request) -> BaseHTTPResponse:
        parts = urlsplit(request.url)
        return self._pool.urlopen(
            request.method,
            (parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
            request.body,
            request.headers,
            retries=False,
            redirect=False,
            timeout=None,  # our sockets have their own
            preload_content=False,
            decode_content=False,
        )


def _read(response: BaseHTTPResponse) -> _Answer:
    # The status is the answer, however long the rest of it takes. What is not read to its end is closed.
    body, broken = b"", None
    if response.status < HTTPStatus.OK:
        # The answer is still to come, and on a connection that is kept it would be taken for the next request's.
        response.close()
    try:
        # Reading beyond what came is what shows an end to be no break.
        while len(body) < READ_BYTES and (more := response.read(READ_BYTES - len(body))):
            body += more
    except (HTTPError, HTTPException, OSError) as error:
        broken = None if _is_late(error) else _cause(error)
    response.close()
    return _Answer(response.status, response.headers, body, broken)


def _cause(error: BaseException) -> str:
    # urllib3 wraps what happened, and says which objects of its own were concerned.
    while error.args and isinstance(error.args[-1], Exception):
        error = error.args[-1]
    if _is_late(error):
        return "its time was over"
    return printable(str(error) or type(error).__name__)[:200].rstrip(". ")


def _is_late(error: BaseException) -> bool:
    return isinstance(error, (TimeoutError, urllib3.exceptions.TimeoutError))


def _verdict(status: int) -> Verdict:
    # What answers 5xx, or a number that means nothing, may be a proxy that knows no better.
    match status // 100:
        case 2:
            return Verdict.DELIVERED
        case 4 if status == HTTPStatus.GONE:
            return Verdict.GONE
        case 4 if status in _REJECTED:
            return Verdict.REJECTED
        case 4 if status == HTTPStatus.TOO_MANY_REQUESTS:
            return Verdict.THROTTLED
        case 3 | 4 if status not in _UNCERTAIN:
            return Verdict.REFUSED
        case _:
            return Verdict.UNKNOWN


def _outcome(host: str, answer: _Answer) -> Outcome:
    verdict = _verdict(answer.status)
    if verdict is Verdict.DELIVERED and answer.broken is not None:
        # What it decided may stand in what is missing; asked again under the same id, it says so again.
        return Outcome(Verdict.UNKNOWN, _broken_off(host, answer), answer.status)
    if verdict is Verdict.DELIVERED:
        return Outcome(verdict, None, answer.status, _kept(answer.body))
    sentence = f"{host} answered {_named(answer.status)}{_elsewhere(answer)}."
    return Outcome(
        verdict,
        sentence,
        answer.status,
        _kept(answer.body),
        _patience(answer.headers),
        # It is working on this one, for an earlier attempt.
        own_fault=answer.status == HTTPStatus.CONFLICT,
    )


def _found(host: str, answer: _Answer) -> Outcome:
    if answer.broken is not None:
        return Outcome(Verdict.UNKNOWN, _broken_off(host, answer), answer.status)
    verdict = {200: Verdict.DELIVERED, 404: Verdict.REFUSED}.get(answer.status, Verdict.UNKNOWN)
    error = None if verdict is Verdict.DELIVERED else f"{host} answered {_named(answer.status)} when it was asked."
    return Outcome(verdict, error, answer.status, _kept(answer.body), _patience(answer.headers))


def _broken_off(host: str, answer: _Answer) -> str:
    return f"{host} answered {_named(answer.status)} and broke off: {answer.broken}."


def _named(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _elsewhere(answer: _Answer) -> str:
    if HTTPStatus.MULTIPLE_CHOICES <= answer.status < HTTPStatus.BAD_REQUEST:
        return f", a redirect{_whereto(answer)}, which is not followed"
    return ""


def _whereto(answer: _Answer) -> str:
    try:
        host = urlsplit(answer.headers.get("location", "")).hostname
    except ValueError:
        host = None
    # Only the host: a whole address may carry what nobody should log.
    return f" to {printable(host)[:200]}" if host else ""


def _patience(headers: Mapping[str, str]) -> float | None:
    asked = headers.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]{1,9}", asked):
        return min(float(asked), LONGEST_PATIENCE)
    until, now = _instant(asked), _instant(headers.get("date", ""))
    if until is None:
        return None
    # By the receiver's own clock, where it sends the time.
    return min(max(until - (time.time() if now is None else now), 0.0), LONGEST_PATIENCE)


def _instant(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return None


def _kept(body: bytes) -> str:
    if len(body) <= KEPT_JSON:
        with suppress(ValueError, RecursionError):
            json.loads(body.decode())
            return body.decode()
    return printable(body[: 4 * KEPT].decode(errors="replace"))[:KEPT]


def _nothing() -> None:
    """A question changes nothing, so it commits to nothing."""
