"""What the business may do around the delivery of its events: render them, stop them, record what became of them.

Only the types are in here, for those who prepare or record; which types of events have such handlers is said by
`ticketflow_orch.event_handlers`, which imports them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import Connection

from ticketflow_orch.outbox.delivery import Message, Outcome
from ticketflow_orch.outbox.events import EventState


@dataclass(frozen=True, slots=True)
class Suppressed:
    """The event is not to be sent; `reason` is for people.

    `until`: the reason may pass, so the business is asked again until then, by its own clock; None: it never does.
    """

    reason: str
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Rendered:
    """A mail. Once it may have reached somebody, later attempts send the same bytes, whatever is rendered then.

    A destination that takes no mails gets the event's JSON all the same.
    """

    body: bytes


Prepared = Suppressed | Rendered

# Called before every attempt with the events of one type that a batch holds (`rendered` is None unless these bytes may
# have reached somebody), in a transaction that does nothing else of weight. Has an answer for each; an event whose
# answer is missing, or for which it raises when asked about it alone, counts as refused.
Preparer = Callable[[Connection, Sequence[Message]], Mapping[UUID, Prepared]]

# Called before every attempt, as a preparer is and before it: why events must not be sent, by id, in a sentence each.
# They are held until a person decides, or in doubt where an earlier attempt may have arrived.
Guard = Callable[[Connection, Sequence[Message]], Mapping[UUID, str]]


@dataclass(frozen=True, slots=True)
class Recorded:
    """What became of an event, for now at least; never that it is PENDING, and INFLIGHT before it is sent.

    `outcome` is None when it is about to be sent for the first time or is suppressed.

    Where a person decided, the outcome is DELIVERED or REJECTED and its `error` says who.
    """

    message: Message
    state: EventState
    outcome: Outcome | None


# Called in the transaction that changes the state of the events, which does not commit when it raises.
Recorder = Callable[[Connection, Sequence[Recorded]], None]


@dataclass(frozen=True, slots=True)
class EventKind:
    """What is particular about the delivery of one type of event.

    Without a preparer its body is the JSON object of its type, timestamp and data, as Standard Webhooks has it.
    """

    preparer: Preparer | None = None
    recorder: Recorder | None = None
    guard: Guard | None = None
