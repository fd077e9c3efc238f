"""The provider's process, to be asked, given a behaviour, killed and started again."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.support.ports import free_port
from tests.support.provider.books import Entry, read

PATIENCE = 30.0
DAY = 86_400.0


class Provider:
    """A provider with its books at `books`; it comes back at the same address after it was killed."""

    def __init__(self, books: Path, forget_after: float = DAY) -> None:
        self.books = books
        self._forget_after = forget_after
        self._port = free_port()
        self._process: subprocess.Popen[str] | None = None
        self._behaviour: dict[str, Any] = {}

    @property
    def url(self) -> str:
        """Where payouts are asked for, and below which their references are looked up."""
        return f"http://127.0.0.1:{self._port}/payouts"

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.provider", str(self.books), str(self._port), str(self._forget_after)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )
        assert self._process.stdout is not None
        assert select.select([self._process.stdout], [], [], PATIENCE)[0], "the provider did not start"
        assert int(self._process.stdout.readline()) == self._port
        self.behave(**self._behaviour)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate(timeout=PATIENCE)
            self._process = None

    def restart(self) -> None:
        self.kill()
        self.start()

    def behave(self, **behaviour: Any) -> None:
        """Fail in these ways from now on, see `Behaviour`; in no way without any."""
        self._behaviour = behaviour
        assert self.ask("PUT", behaviour)[0] == 200

    def pay(self, key: str, **order: Any) -> tuple[int, dict[str, Any]]:
        """Ask for a payout under `key` as the relay would; returns what is answered."""
        return self.ask("POST", {"data": order}, **{"Idempotency-Key": key})

    def look_up(self, reference: str) -> tuple[int, dict[str, Any]]:
        return self.ask("GET", None, reference)

    def ask(self, method: str, said: Any, below: str = "", **headers: str) -> tuple[int, dict[str, Any]]:
        url = f"{self.url}/{below}" if below else self.url
        body = None if said is None else json.dumps(said).encode()
        request = urllib.request.Request(url, body, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    @property
    def entries(self) -> list[Entry]:
        return read(self.books)

    @property
    def paid(self) -> list[tuple[str, str, int]]:
        """Every payment that was made: organization, currency, minor units; one made twice is there twice."""
        return sorted(
            (entry.organization, entry.currency, entry.amount) for entry in self.entries if entry.status == "confirmed"
        )
