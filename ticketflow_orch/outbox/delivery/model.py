"""What every transport is given and what it answers. Which transports there are is in `destinations`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Protocol
from uuid import UUID


class Verdict(Enum):
    """What is known of an attempt."""

    DELIVERED = "delivered"
    """The receiver has it."""

    REFUSED = "refused"
    """The receiver does not have it and may take it later: it said so."""

    UNREACHED = "unreached"
    """Nothing reached the receiver: no connection, no handshake, no login, no room on the disk."""

    THROTTLED = "throttled"
    """The receiver does not have it, and takes less than it is sent: it said so."""

    REJECTED = "rejected"
    """The receiver does not have it and never will: it said so for good."""

    GONE = "gone"
    """The receiver does not have it, and wants nothing of this kind any more."""

    UNKNOWN = "unknown"
    """The receiver may have it or not: the answer was lost, or says nothing about it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of an attempt.

    `error`: one sentence for people, unless delivered. `status`: the receiver's code (HTTP or SMTP), if it gave one;
    `response`: the beginning of what it said, JSON as a whole. `retry_after`: seconds that it asked to be left alone.
    `own_fault`: what went wrong is about this message alone and says nothing about others to the same destination.
    """

    verdict: Verdict
    error: str | None = None
    status: int | None = None
    response: str = ""
    retry_after: float | None = None
    own_fault: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """One attempt at an event, as a transport sees it. `event_id` is the same on every attempt.

    So is `body` once the receiver may have it. `data`: the payload as Postgres writes it. `rendered`: what a preparer
    made of it, None where none did so far. `doubtful`: the receiver may have it from an earlier attempt.
    """

    event_id: UUID
    event_type: str
    aggregate_type: str
    aggregate_id: str
    data: str
    occurred_at: datetime
    rendered: bytes | None
    attempt: int
    doubtful: bool = False

    @property
    def payload(self) -> dict[str, Any]:
        """The payload, read anew each time."""
        read: dict[str, Any] = json.loads(self.data)
        return read

    @property
    def body(self) -> bytes:
        """The bytes that are sent."""
        if self.rendered is None:
            return envelope(self.event_type, self.occurred_at, self.data)
        return self.rendered


def envelope(event_type: str, occurred_at: datetime, data: str) -> bytes:
    """The body of an event that nobody renders: one JSON object, as Standard Webhooks has it.

    Made of what never changes about an event, so it is the same at every attempt without being kept.
    """
    at = occurred_at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds")
    head = json.dumps({"type": event_type, "timestamp": f"{at}Z"}, ensure_ascii=False)
    return f'{head[:-1]}, "data": {data}}}'.encode()


class FencedError(RuntimeError):
    """The lease of this attempt is over: somebody else may be working on it, so nothing more may be sent."""


# Called by a transport right before the step after which its receiver may have the message. Raises FencedError when
# the attempt is no longer ours; returns when the step may be taken.
Commit = Callable[[], None]


class Transport(Protocol):
    """One way to the outside world. Safe to use from several threads at once; bounded in time and in what it reads."""

    def send(self, message: Message, commit: Commit) -> Outcome:
        """Send `message` once; never raises for what the receiver does."""

    def look_up(self, message: Message) -> Outcome:
        """Ask the receiver by our own reference: DELIVERED, REFUSED (it does not know it), or UNKNOWN."""

    def close(self) -> None:
        """Give back connections; files are complete."""


def printable(text: str) -> str:
    """`text` of somebody else, fit for a line of a log or a table: anything that is not printable is a space."""
    return "".join(character if character.isprintable() else " " for character in text)
