"""Preparing: what the business has to say about claimed events before they are sent.

It may render, suppress or hold them (`delivery.handlers`); what ends by that is completed without being sent.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from ticketflow_orch.db.engine import transaction
from ticketflow_orch.db.errors import in_words, is_row_fault
from ticketflow_orch.outbox.delivery import Outcome, Verdict
from ticketflow_orch.outbox.delivery.configuration import Route
from ticketflow_orch.outbox.delivery.handlers import EventKind, Guard, Preparer, Recorded, Rendered, Suppressed
from ticketflow_orch.outbox.events import EventState
from ticketflow_orch.outbox.relay.completer import Completer
from ticketflow_orch.outbox.relay.config import RelayConfig
from ticketflow_orch.outbox.relay.ended import Ended
from ticketflow_orch.outbox.relay.executor import given_up, judge
from ticketflow_orch.outbox.relay.fetch import Claimed

_LOG = logging.getLogger(__name__)
# So many holders in a row may go away with an event; the next one would.
HOLDERS = 12


@dataclass(frozen=True, slots=True)
class _Ready:
    """What is to be sent of a batch, what has ended unsent, and how many of it are no longer ours."""

    events: tuple[Claimed, ...] = ()
    ended: tuple[Ended, ...] = ()
    overtaken: int = 0

    def __add__(self, other: _Ready) -> _Ready:
        return _Ready(self.events + other.events, self.ended + other.ended, self.overtaken + other.overtaken)


def prepare(
    connection: Connection, config: RelayConfig, completer: Completer, claimed: Sequence[Claimed]
) -> tuple[Claimed, ...]:
    """What of `claimed` is to be sent, after the business was asked; the rest is completed over `connection`.

    Sorts out events whose attempts are used up, lets the business render or suppress the others, keeps what is new.
    What nobody can have received yet is rendered anew at each attempt; what may have arrived stays as it was.

    One transaction for each type that has a say. Where that fails each event is asked about by itself, so that a bad
    one, which counts as refused, holds up no other.
    """
    ready = _sort_out(config, claimed)
    completer.complete(connection, [*ready.ended, *[None] * ready.overtaken])
    return ready.events


def _sort_out(config: RelayConfig, claimed: Sequence[Claimed]) -> _Ready:
    ready = _Ready()
    for event_type, same in groupby(sorted(claimed, key=_type), key=_type):
        route, kind = config.delivery.route_to(event_type, claimed[0].to), config.kinds.get(event_type)
        events, ended = [], []
        for one in same:
            # Its holders went away at every single attempt. What ends them must not run again.
            allowed = HOLDERS if route.attempts is None else route.attempts
            begun = one.lost if route.attempts is None else one.counted - 1
            if begun >= allowed:
                reason = f"It was begun {begun} times already; its route allows {allowed}."
                ended.append(Ended(one, given_up(route, one.doubt is not None), reason=reason, counts=False))
            else:
                events.append(one)
        ready += _Ready((), tuple(ended))
        ready += _Ready(tuple(events)) if kind is None else _prepare(config, kind, route, events)
    return ready


def _type(claimed: Claimed) -> str:
    return claimed.message.event_type


def _prepare(config: RelayConfig, kind: EventKind, route: Route, claimed: Sequence[Claimed]) -> _Ready:
    if not claimed:
        return _Ready()
    try:
        with transaction(config.engine) as connection:
            ready = _guarded(connection, kind.guard, claimed) if kind.guard else _Ready(tuple(claimed))
            if kind.preparer and ready.events:
                ready = _Ready((), ready.ended) + _ask(connection, kind.preparer, ready.events, route)
            if kind.recorder and ready.events:
                kind.recorder(connection, [Recorded(one.message, EventState.INFLIGHT, None) for one in ready.events])
            return ready
    except Exception as error:
        if isinstance(error, DBAPIError) and not is_row_fault(error):
            raise
        if len(claimed) > 1:
            return sum((_prepare(config, kind, route, [one]) for one in claimed), _Ready())
        message = claimed[0].message
        _LOG.exception("Event %s (%s) cannot be prepared.", message.event_id, message.event_type)
        reason = f"It could not be prepared: {type(error).__name__}: {in_words(error)}"
        refused = Outcome(Verdict.REFUSED, reason, own_fault=True)
        return _Ready((), (judge(claimed[0], route, refused),))


def _guarded(connection: Connection, guard: Guard, claimed: Sequence[Claimed]) -> _Ready:
    objections = guard(connection, [one.message for one in claimed])
    free, ended = [], []
    for one in claimed:
        reason = objections.get(one.message.event_id)
        if reason is None:
            free.append(one)
        else:
            ended.append(
                Ended(one, EventState.HELD if one.doubt is None else EventState.IN_DOUBT, reason=reason, counts=False)
            )
    return _Ready(tuple(free), tuple(ended))


def _ask(connection: Connection, preparer: Preparer, claimed: Sequence[Claimed], route: Route) -> _Ready:
    claimed = [_unfrozen(one) for one in claimed]
    answers = preparer(connection, [one.message for one in claimed])
    events, ended, rendered = [], [], {}
    for one in claimed:
        answer = answers.get(one.message.event_id)
        if isinstance(answer, Suppressed):
            ended.append(Ended(one, EventState.SUPPRESSED, reason=answer.reason, reconsider_until=answer.until))
        elif not isinstance(answer, Rendered):
            raise LookupError(f"no answer about event {one.message.event_id}")  # noqa: TRY004 - there is none at all
        elif not route.takes_mails:
            events.append(replace(one, message=replace(one.message, rendered=None)))
        elif one.message.rendered is not None:
            events.append(one)
        else:
            rendered[one.id] = replace(one, message=replace(one.message, rendered=answer.body))
    kept = _keep(connection, list(rendered.values()))
    return _Ready(tuple(events) + kept, tuple(ended), len(rendered) - len(kept))


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
