"""Preparing: what the business has to say about a batch before it is sent."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from ticketflow_orch.db.engine import transaction
from ticketflow_orch.db.errors import in_words, is_row_fault
from ticketflow_orch.outbox.delivery import Outcome, Verdict
from ticketflow_orch.outbox.delivery.configuration import Delivery, Route
from ticketflow_orch.outbox.delivery.handlers import EventKind, Guard, Preparer, Recorded, Rendered, Suppressed
from ticketflow_orch.outbox.relay.completer import Ended
from ticketflow_orch.outbox.relay.executor import given_up, judge
from ticketflow_orch.outbox.relay.fetch import Claimed

_LOG = logging.getLogger(__name__)
# So many holders in a row may go away with an event; the next one would.
HOLDERS = 12


@dataclass(frozen=True, slots=True)
class Ready:
    """What is to be sent of a batch, what has come to its end unsent, and how many of it are no longer ours."""

    events: tuple[Claimed, ...] = ()
    ended: tuple[Ended, ...] = ()
    overtaken: int = 0

    def __add__(self, other: Ready) -> Ready:
        return Ready(self.events + other.events, self.ended + other.ended, self.overtaken + other.overtaken)


def prepare(engine: Engine, delivery: Delivery, kinds: Mapping[str, EventKind], claimed: Sequence[Claimed]) -> Ready:
    """Sort out events whose attempts are used up, let the business render or suppress the rest, keep what is new.

    What nobody can have received yet is rendered anew at each attempt; what may have arrived stays as it was.

    One transaction for each type that has a say. Where that fails each event is asked about by itself, so that a bad
    one, which counts as refused, holds up no other.
    """
    ready = Ready()
    for event_type, same in groupby(sorted(claimed, key=_type), key=_type):
        route, kind = delivery.route_to(event_type, claimed[0].to), kinds.get(event_type)
        events, ended = [], []
        for one in same:
            # Its holders went away at every single attempt. Whatever it is that ends them, it must not run again.
            allowed = HOLDERS if route.attempts is None else route.attempts
            begun = one.lost if route.attempts is None else one.counted - 1
            if begun >= allowed:
                reason = f"It was begun {begun} times already; its route allows {allowed}."
                ended.append(Ended(one, given_up(route, one.doubt is not None), reason=reason, counts=False))
            else:
                events.append(one)
        ready += Ready((), tuple(ended))
        ready += Ready(tuple(events)) if kind is None else _prepare(engine, delivery, kind, events)
    return ready


def _type(claimed: Claimed) -> str:
    return claimed.message.event_type


def _prepare(engine: Engine, delivery: Delivery, kind: EventKind, claimed: Sequence[Claimed]) -> Ready:
    if not claimed:
        return Ready()
    try:
        with transaction(engine) as connection:
            route = delivery.route_to(_type(claimed[0]), claimed[0].to)
            ready = _guarded(connection, kind.guard, claimed) if kind.guard else Ready(tuple(claimed))
            if kind.preparer and ready.events:
                ready = Ready((), ready.ended) + _ask(connection, kind.preparer, ready.events, route)
            if kind.recorder and ready.events:
                kind.recorder(connection, [Recorded(one.message, "INFLIGHT", None) for one in ready.events])
            return ready
    except Exception as error:
        if isinstance(error, DBAPIError) and not is_row_fault(error):
            raise
        if len(claimed) > 1:
            return sum((_prepare(engine, delivery, kind, [one]) for one in claimed), Ready())
        message = claimed[0].message
        _LOG.exception("Event %s (%s) cannot be prepared.", message.event_id, message.event_type)
        reason = f"It could not be prepared: {type(error).__name__}: {in_words(error)}"
        return Ready(
            (),
            (
                judge(
                    claimed[0],
                    delivery.route_to(message.event_type, claimed[0].to),
                    Outcome(Verdict.REFUSED, reason, own_fault=True),
                ),
            ),
        )


def _guarded(connection: Connection, guard: Guard, claimed: Sequence[Claimed]) -> Ready:
    objections = guard(connection, [one.message for one in claimed])
    free, ended = [], []
    for one in claimed:
        reason = objections.get(one.message.event_id)
        if reason is None:
            free.append(one)
        else:
            ended.append(Ended(one, "HELD" if one.doubt is None else "IN_DOUBT", reason=reason, counts=False))
    return Ready(tuple(free), tuple(ended))


def _ask(connection: Connection, preparer: Preparer, claimed: Sequence[Claimed], route: Route) -> Ready:
    claimed = [_unfrozen(one) for one in claimed]
    answers = preparer(connection, [one.message for one in claimed])
    events, ended, rendered = [], [], {}
    for one in claimed:
        answer = answers.get(one.message.event_id)
        if isinstance(answer, Suppressed):
            ended.append(Ended(one, "SUPPRESSED", reason=answer.reason, reconsider_until=answer.until))
        elif not isinstance(answer, Rendered):
            raise LookupError(f"no answer about event {one.message.event_id}")  # noqa: TRY004 - there is none at all
        elif not route.takes_mails:
            events.append(replace(one, message=replace(one.message, rendered=None)))
        elif one.message.rendered is not None:
            events.append(one)
        else:
            rendered[one.id] = replace(one, message=replace(one.message, rendered=answer.body))
    kept = _keep(connection, list(rendered.values()))
    return Ready(tuple(events) + kept, tuple(ended), len(rendered) - len(kept))


def _unfrozen(claimed: Claimed) -> Claimed:
    """`claimed` without the bytes of an earlier attempt, where it is certain that they reached nobody."""
    if claimed.doubt is not None or claimed.message.rendered is None:
        return claimed
    return replace(claimed, message=replace(claimed.message, rendered=None))


def _keep(connection: Connection, rendered: Sequence[Claimed]) -> tuple[Claimed, ...]:
    if not rendered:
        return ()
    values = {
        "ids": [one.id for one in rendered],
        "attempts": [one.message.attempt for one in rendered],
        "bodies": [one.message.rendered for one in rendered],
    }
    ours = set(connection.exec_driver_sql(_KEEP, values).scalars())
    return tuple(one for one in rendered if one.id in ours)


# Before they are sent: from then on they may be what somebody has. While the event is not in doubt, the next attempt
# may replace them.
_KEEP = """
    UPDATE outbox_event AS event SET body = mine.body
    FROM unnest(%(ids)s::bigint[], %(attempts)s::integer[], %(bodies)s::bytea[])
        AS mine (id, attempt, body)
    WHERE event.id = mine.id AND attempts = mine.attempt AND state = 'INFLIGHT'
    RETURNING event.id
"""
