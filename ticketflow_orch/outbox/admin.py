"""What people see and decide about events in the outbox, one by one or, for the dead, many at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import Connection, Row

from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.errors import InvalidInput, PreconditionFailed
from ticketflow_orch.outbox import stops
from ticketflow_orch.outbox.delivery import Outcome, Verdict, envelope
from ticketflow_orch.outbox.delivery.configuration import Delivery
from ticketflow_orch.outbox.delivery.handlers import EventKind, Recorded
from ticketflow_orch.outbox.events import EventState, require_event_type
from ticketflow_orch.outbox.relay.due import waiting
from ticketflow_orch.outbox.relay.reconsidering import message_of
from ticketflow_orch.outbox.stops import StopKind

Resolution = Literal["delivered", "again", "dead", "dropped"]
_LIST = "`ticketflow outbox list` shows those there are"
# Aggregates whose own state must move with that of their event, where they are there.
_OTHER_DESKS: Mapping[str, str] = {"payout": "ticketflow payouts"}
# What may be said of events in other states than those that wait for an answer.
_ALSO: Mapping[str, set[EventState]] = {
    "again": {EventState.SUPPRESSED},
    "dropped": {EventState.HELD, EventState.SUPPRESSED},
}
_RESOLVED: Mapping[str, EventState] = {
    "delivered": EventState.DELIVERED,
    "again": EventState.PENDING,
    "dead": EventState.DEAD,
    "dropped": EventState.SUPPRESSED,
}


@dataclass(frozen=True, slots=True)
class Event:
    """An event as a list shows it. `attempts`: those that count, since it was last redriven."""

    event_id: UUID
    event_type: str
    aggregate_type: str
    aggregate_id: str
    state: str
    attempts: int
    occurred_at: datetime
    available_at: datetime | None
    last_attempt_at: datetime | None
    ended_at: datetime | None
    last_error: str | None


@dataclass(frozen=True, slots=True)
class Detail:
    """All that is known of one event.

    `attempt` counts every claim. `destination`: whom it was addressed to, at last or where it came in doubt. `body` is
    what is sent, once that is known.
    """

    event: Event
    payload: Mapping[str, Any]
    dedupe_key: str
    attempt: int
    owner: str | None
    lease_until: datetime | None
    first_attempt_at: datetime | None
    doubtful_since: datetime | None
    last_response: str | None
    destination: str | None
    body: bytes | None


@dataclass(frozen=True, slots=True)
class Attempt:
    """How an attempt ended that did not deliver its event; `outcome` is a verdict of delivery, or `lost` or `none`."""

    attempt: int
    began_at: datetime | None
    ended_at: datetime
    owner: str | None
    destination: str | None
    outcome: str
    error: str | None
    response: str | None


@dataclass(frozen=True, slots=True)
class DestinationState:
    """How a destination does. `next_at`: nothing is sent to it before. `rate`: events a second that it is sent."""

    name: str
    failing_since: datetime | None
    next_at: datetime | None
    rate: float | None
    error: str | None
    stopped: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """Which dead events; all that is given must hold. `since`: the last attempt ended then or later."""

    event_ids: Sequence[UUID] = ()
    event_types: Sequence[str] | None = None
    since: datetime | None = None


def parse_event_id(value: str) -> UUID:
    """An event's id from text.

    Raises:
        InvalidInput: not a UUID.
    """
    try:
        return UUID(value)
    except ValueError:
        raise InvalidInput(f"{value!r} is not an event's id, which is a UUID; {_LIST}.") from None


def list_events(
    connection: Connection,
    *,
    state: str | None = None,
    event_type: str | None = None,
    aggregate: str | None = None,
    limit: int = 50,
) -> tuple[Event, ...]:
    """The first `limit` events that have not ended, the oldest first; with a `state`, its last ones.

    `aggregate`: its id.

    Raises:
        InvalidInput: there is no such state or type.
    """
    if event_type is not None:
        require_event_type(event_type)
    if state is not None and state not in set(EventState):
        raise InvalidInput(f"{state!r} is no state of an event; choose one of {', '.join(EventState)}.")
    query = _UNENDED if state is None else _OF_STATE
    values = {"state": state, "event_type": event_type, "aggregate": aggregate, "limit": limit}
    return tuple(Event(**row) for row in connection.exec_driver_sql(query, values).mappings())


def list_kept_back(connection: Connection, limit: int = 50) -> tuple[Event, ...]:
    """The first `limit` events that are suppressed for a reason that may pass, and go by themselves when it has."""
    return tuple(Event(**row) for row in connection.exec_driver_sql(_KEPT_BACK, {"limit": limit}).mappings())


def show(connection: Connection, kinds: Mapping[str, EventKind], event_id: UUID) -> Detail:
    """All that is known of an event.

    Raises:
        InvalidInput: there is no such event.
    """
    found = connection.exec_driver_sql(_SHOW, {"event_id": event_id}).mappings().one_or_none()
    if found is None:
        raise _unknown(event_id)
    columns = dict(found)
    data = columns.pop("data")
    event = Event(**{field.name: columns.pop(field.name) for field in fields(Event)})
    kind = kinds.get(event.event_type)
    if columns["body"] is None and (kind is None or kind.preparer is None):
        columns["body"] = envelope(event.event_type, event.occurred_at, data)
    return Detail(event, **columns)


def attempts(connection: Connection, event_id: UUID) -> tuple[Attempt, ...]:
    """The attempts at an event that did not deliver it, the first one first."""
    return tuple(Attempt(**row) for row in connection.exec_driver_sql(_ATTEMPTS, {"event_id": event_id}).mappings())


def destinations(connection: Connection, delivery: Delivery) -> tuple[DestinationState, ...]:
    """How each destination of the configuration does, in the order of their names."""
    known = {row.name: row for row in connection.exec_driver_sql(_DESTINATIONS)}
    stopped = {one.name for one in stops.stops(connection) if one.kind == "DESTINATION"}
    found = []
    for name in sorted(delivery.destinations):
        row = known.get(name)
        rates = [rate for rate in (delivery.allowance(name).rate, row and row.rate) if rate]
        since, next_at, error = (None, None, None) if row is None else (row.failing_since, row.next_at, row.last_error)
        found.append(DestinationState(name, since, next_at, min(rates, default=None), error, name in stopped))
    return tuple(found)


def require_destination(delivery: Delivery, destination: str) -> None:
    """Raise InvalidInput where the configuration of delivery has no such destination."""
    known = delivery.destinations
    if destination not in known:
        raise InvalidInput(f"There is no destination {destination!r}; choose one of {', '.join(sorted(known))}.")


def chosen_types(
    connection: Connection, delivery: Delivery, event_type: str | None, destination: str | None
) -> tuple[str, ...] | None:
    """The types that are `event_type` and, of what waits, go to `destination`; None: neither is asked for.

    Raises:
        InvalidInput: there is no such type or destination.
    """
    if event_type is not None:
        require_event_type(event_type)
    if destination is None:
        return None if event_type is None else (event_type,)
    require_destination(delivery, destination)
    return tuple(
        kind
        for kind in waiting(connection).types
        if delivery.route(kind).destination == destination and event_type in {None, kind}
    )


def decided_elsewhere() -> list[str]:
    """The types of aggregates about whose events other commands decide."""
    return list(_OTHER_DESKS)


def would_redrive(connection: Connection, choice: Choice) -> int:
    """How many events `redrive` would take.

    Raises:
        InvalidInput: nothing is chosen at all.
    """
    _require_choice(choice)
    return len(connection.exec_driver_sql(_DEAD, _values_of(choice)).all())


def redrive(connection: Connection, choice: Choice) -> int:
    """Give dead events a new budget of attempts, under the same ids, with the same bytes; how many there were.

    Those that are decided about elsewhere are left out.

    Raises:
        InvalidInput: nothing is chosen, or there is no such event.
        PreconditionFailed: an event that `choice` names is not dead or is decided about elsewhere.
    """
    _require_choice(choice)
    redriven = set(connection.exec_driver_sql(_REDRIVE, _values_of(choice)).scalars())
    for event_id in choice.event_ids:
        if event_id not in redriven:
            found = _locked(connection, event_id)
            _require_no_other_desk(found)
            raise PreconditionFailed(
                f"Event {event_id} is {found.state} or not among those chosen; only DEAD ones are redriven."
            )
    return len(redriven)


def _require_choice(choice: Choice) -> None:
    if not choice.event_ids and choice.event_types is None and choice.since is None:
        raise InvalidInput("Say which dead events to redrive: ids, an event type, a destination, or since when.")


def _values_of(choice: Choice) -> dict[str, object]:
    return {
        "event_ids": list(choice.event_ids) or None,
        "event_types": None if choice.event_types is None else list(choice.event_types),
        "since": choice.since,
        "others": list(_OTHER_DESKS),
    }


def hold(connection: Connection, event_id: UUID) -> None:
    """Keep a pending event, and with it all later ones of its aggregate, until it is released.

    Raises:
        InvalidInput: there is no such event.
        PreconditionFailed: it is not PENDING, or it is decided about elsewhere.
    """
    _move(connection, event_id, {EventState.PENDING}, "held", _HOLD)


def release(connection: Connection, event_id: UUID) -> None:
    """Let a held event go, at once.

    Raises:
        InvalidInput: there is no such event.
        PreconditionFailed: it is not HELD, or it is decided about elsewhere.
    """
    _move(connection, event_id, {EventState.HELD}, "released", _RELEASE)


def resolve(
    connection: Connection, kinds: Mapping[str, EventKind], event_id: UUID, resolution: Resolution, by: str
) -> None:
    """Say what became of an event that is in doubt or dead; `by` says who decided it.

    delivered: its receiver has it. again: it has not, so it is sent again with a new budget of attempts, which may
    be said of what is suppressed too: the business is asked again before it goes. dead: it has not, and it is to wait.
    dropped: it is never sent, which may be said of what is held or suppressed too. The business learns of it as it
    does from the relay.

    Raises:
        InvalidInput: there is no such event.
        PreconditionFailed: its state is none of these, it is dead already, or it is decided about elsewhere.
    """
    found = _locked(connection, event_id)
    _require_no_other_desk(found)
    state = _RESOLVED[resolution]
    waits = {EventState.IN_DOUBT, EventState.DEAD} | _ALSO.get(resolution, set())
    # What is dropped for good is one of those that are kept back, and not looked at again.
    is_so = found.state == state and found.reconsider_until is None
    if found.state not in waits or is_so:
        raise PreconditionFailed(
            f"Event {event_id} is {found.state}, so it cannot be resolved as {resolution}; "
            "only what is IN_DOUBT or DEAD waits for that."
        )
    said = f"Resolved as {resolution} by {by}."
    connection.exec_driver_sql(_RESOLVE, {"id": found.id, "state": state, "said": said})
    if state != EventState.PENDING:
        kind = kinds.get(found.event_type)
        if kind is not None and kind.recorder is not None:
            kind.recorder(connection, [_recorded(found, state, said)])


def stop(connection: Connection, kind: StopKind, name: str, reason: str, by: str) -> None:
    """Deliver nothing to a destination, or of a type, until it is resumed.

    Raises:
        InvalidInput: there is no such type.
        PreconditionFailed: it is stopped already.
    """
    if kind == "EVENT_TYPE":
        require_event_type(name)
    if stops.stop(connection, kind, name, reason, by) is None:
        raise PreconditionFailed(f"{name} is stopped already; `ticketflow outbox stops` says by whom and why.")


def resume(connection: Connection, kind: StopKind, name: str) -> None:
    """Deliver again what was stopped.

    Raises:
        PreconditionFailed: it is not stopped.
    """
    if not stops.resume(connection, kind, name):
        raise PreconditionFailed(f"{name} is not stopped; `ticketflow outbox stops` lists what is.")


def _move(connection: Connection, event_id: UUID, states: set[EventState], done: str, statement: Any) -> None:  # noqa: ANN401
    found = _locked(connection, event_id)
    _require_no_other_desk(found)
    if found.state not in states:
        raise PreconditionFailed(
            f"Event {event_id} is {found.state}; only what is {' or '.join(states)} can be {done}."
        )
    connection.exec_driver_sql(statement, {"id": found.id})


def _locked(connection: Connection, event_id: UUID) -> Row[Any]:
    row = connection.exec_driver_sql(_LOCK, {"event_id": event_id}).one_or_none()
    if row is None:
        raise _unknown(event_id)
    return row


def _require_no_other_desk(found: Row[Any]) -> None:
    command = _OTHER_DESKS.get(found.aggregate_type)
    if command is not None and found.is_its_own:
        raise PreconditionFailed(
            f"Event {found.event_id} is about {found.aggregate_type} {found.aggregate_id}; "
            f"decide about that with `{command}`."
        )


def _unknown(event_id: UUID) -> InvalidInput:
    return InvalidInput(f"There is no event {event_id}; {_LIST}.")


def _recorded(found: Row[Any], state: EventState, said: str) -> Recorded:
    doubtful = found.doubtful_since is not None
    message = message_of(found, rendered=found.body, attempt=found.attempts, doubtful=doubtful)
    if state == EventState.SUPPRESSED:
        return Recorded(message, state, None)
    verdict = Verdict.DELIVERED if state == EventState.DELIVERED else Verdict.REJECTED
    return Recorded(message, state, Outcome(verdict, said))


_SHOWN = sql(__file__, "shown")
_CHOSEN = sql(__file__, "chosen")
_UNENDED = sql(__file__, "unended", shown=_SHOWN, chosen=_CHOSEN)
_OF_STATE = sql(__file__, "of_state", shown=_SHOWN, chosen=_CHOSEN)
_KEPT_BACK = sql(__file__, "kept_back", shown=_SHOWN)
_SHOW = sql(__file__, "show", shown=_SHOWN)

_ATTEMPTS = """
    SELECT attempt, began_at, outbox_attempt.ended_at, outbox_attempt.owner, outbox_attempt.destination, outcome, error,
        response
    FROM outbox_attempt JOIN outbox_event ON outbox_event.id = outbox_id
    WHERE event_id = %(event_id)s::uuid ORDER BY attempt
"""

_DESTINATIONS = """
    SELECT name, failing_since, rate::float AS rate, last_error, CASE
        WHEN greatest(open_until, probe_until, paused_until) > clock_timestamp()
        THEN greatest(open_until, probe_until, paused_until) END AS next_at
    FROM delivery_destination
"""

# An event that asks for a payout which is not there, or beside its own, is decided about here.
_LOCK = """
    SELECT *, payload::text AS data, dedupe_key = 'PayoutRequested:' || aggregate_id AND EXISTS (
        SELECT FROM payout WHERE public_id = CASE
            WHEN aggregate_id ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN aggregate_id::uuid END
    ) AS is_its_own
    FROM outbox_event WHERE event_id = %(event_id)s::uuid FOR UPDATE
"""

_DEAD = sql(__file__, "dead")
_REDRIVE = sql(__file__, "redrive", dead=_DEAD)

_HOLD = "UPDATE outbox_event SET state = 'HELD', available_at = NULL WHERE id = %(id)s"

_RELEASE = """
    UPDATE outbox_event SET state = 'PENDING', available_at = clock_timestamp(), tried_since = NULL WHERE id = %(id)s
"""

_RESOLVE = sql(__file__, "resolve")
