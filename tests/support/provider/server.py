"""What the provider answers, and how it fails."""

from __future__ import annotations

import hashlib
import json
import random
import socket
import threading
import time
import uuid
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.provider.books import Books, Entry


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How likely each failure is, from 0 to 1, and what else is wrong.

    `drop`: the connection breaks before it acted. `lose`: it acts and the answer is lost. `break_off`: it
    acts and its answer breaks off. `fail`: it acts and answers 500. `slow`: it takes `pause` seconds to act, and
    answers 409 to requests meanwhile. `mumble`: it acts and says so in words that nobody knows. `busy`: it answers
    503 and does nothing. `reject`: organizations whose payouts it refuses.
    """

    drop: float = 0
    lose: float = 0
    break_off: float = 0
    fail: float = 0
    slow: float = 0
    pause: float = 0.5
    mumble: float = 0
    busy: float = 0
    reject: tuple[str, ...] = ()


@dataclass(slots=True)
class Desk:
    """What the provider knows: its books, the keys that it remembers, and what it is at."""

    books: Books
    forget_after: float
    behaviour: Behaviour = field(default_factory=Behaviour)
    lock: threading.Lock = field(default_factory=threading.Lock)
    at_work: dict[str, str] = field(default_factory=dict)
    dice: random.Random = field(default_factory=random.Random)

    def remembered(self, key: str) -> Entry | None:
        found = [entry for entry in self.books.entries if entry.key == key]
        return found[-1] if found and time.time() - found[-1].at < self.forget_after else None

    def happens(self, odds: float) -> bool:
        return self.dice.random() < odds


class ConnectionLost(Exception):
    """No more is answered, and the connection is gone."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    desk: Desk

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            self.answer(*self.pay(self.headers.get("Idempotency-Key"), body))
        except ConnectionLost:
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True

    def do_PUT(self) -> None:
        changes = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.desk.behaviour = replace(Behaviour(), **changes)
        self.answer(200, {})

    def do_GET(self) -> None:
        reference = self.path.rpartition("/")[2]
        with self.desk.lock:
            if reference in self.desk.at_work.values():
                self.answer(409, {"error": "in progress"})
                return
            found = [entry for entry in self.desk.books.entries if entry.reference == reference]
        if found:
            self.answer(200, answer_for(found[-1]))
        else:
            self.answer(404, {"error": "unknown reference"})

    def pay(self, key: str | None, body: bytes) -> tuple[int, dict[str, Any]]:
        desk = self.desk
        if not key:
            return 400, {"error": "an Idempotency-Key is needed"}
        order = json.loads(body)["data"]
        fingerprint = hashlib.sha256(body).hexdigest()
        with desk.lock:
            answer = self.before_acting(key, fingerprint)
            if answer is not None:
                return answer
            desk.at_work[key] = order["reference"]
        if desk.happens(desk.behaviour.slow):
            until = time.monotonic() + desk.behaviour.pause
            # A request to behave otherwise need not wait for it.
            while desk.behaviour.slow and time.monotonic() < until:
                time.sleep(0.02)
        with desk.lock:
            entry = self.decided(key, fingerprint, order)
            desk.books.write(entry)
            del desk.at_work[key]
        return self.after_acting(entry)

    def before_acting(self, key: str, fingerprint: str) -> tuple[int, dict[str, Any]] | None:
        """What is answered without doing anything, if so."""
        desk = self.desk
        first = desk.remembered(key)
        if first is not None:
            return (200, answer_for(first)) if first.fingerprint == fingerprint else (422, {"error": "key reused"})
        if key in desk.at_work:
            return 409, {"error": "in progress"}
        if desk.happens(desk.behaviour.drop):
            raise ConnectionLost
        return (503, {"error": "busy"}) if desk.happens(desk.behaviour.busy) else None

    def after_acting(self, entry: Entry) -> tuple[int, dict[str, Any]]:
        behaviour = self.desk.behaviour
        if self.desk.happens(behaviour.lose):
            raise ConnectionLost
        if self.desk.happens(behaviour.break_off):
            self.head(200, 1_000)
            raise ConnectionLost
        if self.desk.happens(behaviour.fail):
            return 500, {"error": "something broke"}
        return (202, {"status": "taken"}) if self.desk.happens(behaviour.mumble) else (200, answer_for(entry))

    def decided(self, key: str, fingerprint: str, order: dict[str, Any]) -> Entry:
        refused = order["organization"] in self.desk.behaviour.reject
        return Entry(
            at=time.time(),
            key=key,
            fingerprint=fingerprint,
            reference=order["reference"],
            organization=order["organization"],
            currency=order["currency"],
            amount=order["amount"],
            status="rejected" if refused else "confirmed",
            provider_ref=f"po_{uuid.uuid4().hex[:12]}",
            reason="account closed" if refused else None,
        )

    def answer(self, status: int, said: dict[str, Any]) -> None:
        body = json.dumps(said).encode()
        self.head(status, len(body))
        self.wfile.write(body)

    def head(self, status: int, length: int) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the base class's
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that gave up waiting is no fault."""


def answer_for(entry: Entry) -> dict[str, Any]:
    return {
        "status": entry.status,
        "provider_ref": entry.provider_ref,
        "reference": entry.reference,
        "amount": entry.amount,
        "currency": entry.currency,
        "reason": entry.reason,
    }


def serve(port: int, books: Path, forget_after: float) -> ThreadingHTTPServer:
    """A server at its desk, not serving yet."""
    handler = type("_Handler", (Handler,), {"desk": Desk(Books(books), forget_after)})
    return _Server(("127.0.0.1", port), handler)
