"""A receiver of webhooks: applies each event once, by its id, and remembers in which order.

In a test, `with HttpReceiver() as receiver`. As a process of its own, so that it shares no interpreter with what is
measured or killed, `with ReceiverProcess() as receiver`, which is `python -m tests.support.sinks.http_receiver`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from email.utils import formatdate
from typing import Any, Literal
from urllib.parse import urlsplit

from tests.support.sinks.script import Script

RECEIVED = b'{"received": true}'


@dataclass(frozen=True)
class Behaviour:
    """What a receiver does with a request: apply it or not, then end in one way or another."""

    status: int
    applies: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = RECEIVED
    ending: Literal["answer", "drop", "garbage", "dribble", "dribble body", "break off", "interim", "silence"] = (
        "answer"
    )
    delay: float = 0


MODES = {
    "ok": Behaviour(200, applies=True),
    "slow": Behaviour(200, applies=True, delay=0.3),
    "too many": Behaviour(429, headers={"Retry-After": "7"}),
    "busy until": Behaviour(503, headers={"Retry-After": "DATE"}),
    "500 after applying": Behaviour(500, applies=True, body=b"Internal\x00 Server\nError"),
    "502": Behaviour(502),
    "apply then drop": Behaviour(200, applies=True, ending="drop"),
    "drop": Behaviour(200, ending="drop"),
    "silence": Behaviour(200, applies=True, ending="silence"),
    "garbage": Behaviour(200, applies=True, ending="garbage"),
    "dribble": Behaviour(200, applies=True, ending="dribble"),
    "dribble body": Behaviour(200, applies=True, ending="dribble body"),
    "break off": Behaviour(200, applies=True, ending="break off"),
    "interim": Behaviour(200, applies=True, ending="interim"),
    "oversized": Behaviour(200, applies=True, body=b"x" * 5_000_000),
    "redirect": Behaviour(301, headers={"Location": "http://elsewhere.example/secret?token=1"}),
    "see other": Behaviour(303, applies=True, headers={"Location": "/thanks"}),
    "bad request": Behaviour(400),
    "unauthorized": Behaviour(401),
    "forbidden": Behaviour(403),
    "not found": Behaviour(404),
    "conflict": Behaviour(409),
    "gone": Behaviour(410),
    "too large": Behaviour(413),
    "unprocessable": Behaviour(422, body=b'{"error": "no such organization"}'),
    "too early": Behaviour(425),
    "unheard of": Behaviour(799),
}


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it came in."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    mode: str


class HttpReceiver:
    """Serves 127.0.0.1 from a thread of its own. `keep_requests`: all of them, to look at, in `requests`."""

    def __init__(self, tls: ssl.SSLContext | None = None, *, keep_requests: bool = True) -> None:
        self.script = Script()
        self.modes = dict(MODES)
        self.requests: list[Request] = []
        self.applied: dict[str, int] = {}
        self.connections = 0
        self._keep = keep_requests
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._open: set[asyncio.BaseTransport] = set()
        self._server = self._loop.run_until_complete(
            self._loop.create_server(lambda: _Connection(self), "127.0.0.1", 0, ssl=tls, backlog=512)
        )
        self.port = int(self._server.sockets[0].getsockname()[1])
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self.port}/hooks"

    def __enter__(self) -> HttpReceiver:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        for transport in list(self._open):
            transport.abort()  # type: ignore[attr-defined]
        while self._open:
            await asyncio.sleep(0)

    def record(self) -> dict[str, Any]:
        """What happened so far: `applied` maps ids, in the order of their first application, to their requests."""
        return {"applied": self.applied, "played": dict(self.script.played), "connections": self.connections}

    def answer(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Behaviour:
        """What to do with a request; applies it, if it is to be applied."""
        if target == "/record":
            return Behaviour(200, body=json.dumps(self.record()).encode())
        if target == "/script":
            for name, arguments in json.loads(body).items():
                getattr(self.script, name)(*arguments)
            return Behaviour(200)
        event_id = headers.get("webhook-id", "")
        mode = self.script.next(event_id)
        if self._keep:
            self.requests.append(Request(method, target, headers, body, mode))
        behaviour = self.modes[mode]
        if method == "GET" and mode == "ok":
            return Behaviour(200 if event_id in self.applied else 404, body=b'{"id": "ours"}')
        if behaviour.applies:
            self.applied[event_id] = self.applied.get(event_id, 0) + 1
        return behaviour


class _Connection(asyncio.Protocol):
    """HTTP/1.1 with keep-alive, as little of it as our own client speaks."""

    transport: asyncio.Transport

    def __init__(self, receiver: HttpReceiver) -> None:
        self._receiver = receiver
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._receiver.connections += 1
        self._receiver._open.add(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._receiver._open.discard(self.transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if not end:
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        length = int(headers.get("content-length", 0))
        if len(rest) < length:
            return
        self._buffer = rest[length:]
        method, target, _ = first.split(" ")
        behaviour = self._receiver.answer(method, target, headers, rest[:length])
        if behaviour.delay:
            asyncio.get_running_loop().call_later(behaviour.delay, self._end, behaviour)
        else:
            self._end(behaviour)

    def _end(self, behaviour: Behaviour) -> None:
        match behaviour.ending:
            case "answer":
                self.transport.write(_head(behaviour) + behaviour.body)
            case "drop":
                self.transport.abort()
            case "garbage":
                self.transport.write(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
                self.transport.close()
            case "dribble":
                self._dribble(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000)
            case "dribble body":
                self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                self._dribble(b"x" * 100_000)
            case "break off":
                self.transport.write(_head(behaviour) + behaviour.body[:-1])
                self.transport.close()
            case "interim":
                self.transport.write(b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n")
                asyncio.get_running_loop().call_later(0.1, self._end, replace(behaviour, ending="answer"))
            case "silence":
                pass

    def _dribble(self, rest: bytes) -> None:
        if rest and not self.transport.is_closing():
            self.transport.write(rest[:1])
            asyncio.get_running_loop().call_later(0.05, self._dribble, rest[1:])


def _head(behaviour: Behaviour) -> bytes:
    headers = {"Content-Type": "application/json", "Content-Length": str(len(behaviour.body)), **behaviour.headers}
    if headers.get("Retry-After") == "DATE":
        now = time.time()
        # The clock of a receiver may be wrong; what it means is the difference.
        headers |= {"Date": formatdate(now - 5000, usegmt=True), "Retry-After": formatdate(now - 4970, usegmt=True)}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {behaviour.status} Whatever\r\n{lines}\r\n".encode()


class ReceiverProcess:
    """The receiver as a process of its own, scripted and asked over HTTP."""

    def __enter__(self) -> ReceiverProcess:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.sinks.http_receiver"], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        assert self.url, "the receiver did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def script(self, **calls: list[Any]) -> None:
        """Call methods of its `Script`: `script(mix=[{"drop": 0.05}, 7])`."""
        self._ask("/script", json.dumps(calls).encode())

    def record(self) -> dict[str, Any]:
        """As `HttpReceiver.record`."""
        found: dict[str, Any] = json.loads(self._ask("/record", None))
        return found

    def _ask(self, path: str, body: bytes | None) -> bytes:
        parts = urlsplit(self.url)
        with urllib.request.urlopen(f"http://{parts.netloc}{path}", body, timeout=30) as answer:
            return bytes(answer.read())


def main() -> None:
    """Serve until killed; the first line of the output is the URL."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mix", default="{}", help='JSON: weights of misbehaviour, such as {"drop": 0.05}')
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with HttpReceiver(keep_requests=False) as receiver:
        receiver.script.mix(json.loads(options.mix), options.seed)
        sys.stdout.write(f"{receiver.url}\n")
        sys.stdout.flush()
        with suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main()
