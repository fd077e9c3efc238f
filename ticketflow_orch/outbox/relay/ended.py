"""How attempts end: decided by `executor` and `prepare`, judged by `pacing`, written down by `completer`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ticketflow_orch.outbox.delivery import Outcome
from ticketflow_orch.outbox.events import EventState
from ticketflow_orch.outbox.relay.fetch import Claimed

_LONGEST_TEXT = 2_000


@dataclass(frozen=True, slots=True)
class Ended:
    """What becomes of an event after an attempt.

    `reason` is for people. `doubt`: whether the receiver may have it from this attempt (True), certainly has it not
    (False), or nothing new is known (None). `counts`: whether the attempt counts against the route's limit. `gone`:
    the destination that wants nothing any more. `reconsider_until`: until when a suppressed event is looked at again.
    `throttled`: it comes again in a moment, since too much came at once.
    """

    claimed: Claimed
    state: EventState
    outcome: Outcome | None = None
    reason: str | None = None
    doubt: bool | None = None
    counts: bool = True
    gone: str | None = None
    reconsider_until: datetime | None = None
    throttled: bool = False

    @property
    def to(self) -> str:
        """The destination that it was claimed for."""
        return self.claimed.to


# What came of a claim: an end; the claim as it was, to be given back unsent; or None, since it is ours no more.
Result = Ended | Claimed | None


def storable(words: str) -> str:
    """The beginning of `words`, without what no text column takes."""
    return words[:_LONGEST_TEXT].replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")
