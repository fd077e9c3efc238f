"""The executor: one attempt at one event, outside any transaction, and what follows from its answer.

What follows is only decided here; `completer` writes it down.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from datetime import timedelta

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from ticketflow_orch.db.engine import transaction
from ticketflow_orch.outbox.delivery import Commit, FencedError, Outcome, Transport, Verdict
from ticketflow_orch.outbox.delivery.configuration import Route
from ticketflow_orch.outbox.events import NEVER_TWICE, EventState
from ticketflow_orch.outbox.relay.config import RelayConfig
from ticketflow_orch.outbox.relay.ended import Ended, Result
from ticketflow_orch.outbox.relay.fetch import Claimed
from ticketflow_orch.outbox.relay.knowledge import Knowledge
from ticketflow_orch.outbox.relay.pacing import Pace
from ticketflow_orch.outbox.relay.state import DrainState

_LOG = logging.getLogger(__name__)


class _UnansweredError(FencedError):
    """Whether the commit was written down is not known; what it comes before did not happen."""


class Executor:
    """Sends claimed events. Safe to use from several threads."""

    def __init__(self, config: RelayConfig, state: DrainState, knowledge: Knowledge, paces: Mapping[str, Pace]) -> None:
        self._config = config
        self._state = state
        self._knowledge = knowledge
        self._paces = paces

    def send(self, claimed: Claimed) -> Result:
        """Send `claimed`; gives it back as it is when it waited for too long, or is not to be sent now after all."""
        event_type, destination = claimed.message.event_type, claimed.to
        stopped = self.holds_back(destination) or self._knowledge.is_stopped(event_type, destination)
        if stopped or time.monotonic() - claimed.at >= self._config.patience:
            return claimed
        delivery = self._config.delivery
        route = delivery.route_to(event_type, destination)
        commit = commit_of(self._config.engine, claimed, route, self._config.leases[destination])
        ended = attempt(claimed, route, delivery.transport(destination), commit)
        if isinstance(ended, Ended):
            self._paces[destination].see(ended)
            if ended.gone is not None:
                self._state.gone.add(ended.gone)
        return ended

    def holds_back(self, destination: str) -> bool:
        """Whether what is claimed for it is not to be sent now after all."""
        return destination in self._state.gone or self._paces[destination].holds_back


def attempt(claimed: Claimed, route: Route, transport: Transport, commit: Commit) -> Result:
    """Send `claimed` once, unless its doubts forbid it; None: it is ours no more, and nothing may be written of it.

    `claimed` as it was where the database was away when its commit was to be written down: it was not sent.
    """
    committed = False

    def committing() -> None:
        nonlocal committed
        commit()
        committed = True

    try:
        forgotten = _is_forgotten(claimed, route) and route.in_doubt != "resend"
        known = _reconsider(claimed, route, transport) if forgotten or _is_asked_first(claimed, route) else None
        if known is not None:
            return known
        return judge(claimed, route, transport.send(claimed.message, committing))
    except _UnansweredError:
        return claimed
    except FencedError:
        return None
    except Exception as error:  # noqa: BLE001 - what breaks after its commit is an attempt of which nothing is known
        _LOG.exception("The transport to %s broke.", route.destination)
        verdict = Verdict.UNKNOWN if committed else Verdict.REFUSED
        return judge(claimed, route, Outcome(verdict, f"The transport broke: {type(error).__name__}: {error}"))


def commit_of(engine: Engine, claimed: Claimed, route: Route, lease: float) -> Commit:
    """What a transport calls before the step after which its receiver may have the event.

    Where the receiver forgets event ids some day, the step is written down first, so that no crash after it can pass
    for one before it. Elsewhere a look at the clock does: sending twice does no harm there.
    """

    def commit() -> None:
        if time.monotonic() >= claimed.at + lease:
            raise FencedError(f"The lease on event {claimed.message.event_id} is over.")
        if route.remembers is None:
            return
        try:
            with transaction(engine) as connection:
                values = {"id": claimed.id, "attempt": claimed.message.attempt}
                ours = connection.exec_driver_sql(_COMMIT, values).rowcount == 1
        except SQLAlchemyError as error:
            raise _UnansweredError("The database did not say whether the lease is still ours.") from error
        if not ours:
            raise FencedError(f"Attempt {claimed.message.attempt} at {claimed.message.event_id} was overtaken.")

    return commit


def judge(claimed: Claimed, route: Route, outcome: Outcome) -> Ended:
    """What becomes of `claimed` after the answer `outcome`."""
    refused = None if claimed.doubt is not None else False
    state: EventState
    match outcome.verdict:
        case Verdict.DELIVERED:
            return Ended(claimed, EventState.DELIVERED, outcome)
        case Verdict.GONE:
            return Ended(
                claimed, EventState.PENDING, outcome, outcome.error, refused, counts=False, gone=route.destination
            )
        case Verdict.THROTTLED:
            # However long it lasts: the destination takes others meanwhile, or operators are alerted that it fails.
            return Ended(claimed, EventState.PENDING, outcome, outcome.error, refused, counts=False, throttled=True)
        case Verdict.UNKNOWN:
            # Where sending it again is out of the question already, it is a person's.
            held = route.remembers == timedelta(0) and route.in_doubt == "hold"
            state = EventState.IN_DOUBT if held else _next(claimed, route, True)
            return Ended(claimed, state, outcome, outcome.error, doubt=True)
        case Verdict.REJECTED:
            return Ended(claimed, EventState.DEAD, outcome, outcome.error, refused)
        case Verdict.REFUSED | Verdict.UNREACHED:
            counts = outcome.verdict is Verdict.REFUSED
            state = _next(claimed, route, claimed.doubt is not None, counts=counts)
            return Ended(claimed, state, outcome, outcome.error, refused, counts=counts)


def _next(claimed: Claimed, route: Route, doubtful: bool, *, counts: bool = True) -> EventState:
    used_up = counts and route.attempts is not None and claimed.counted >= route.attempts
    age = claimed.age + time.monotonic() - claimed.at
    # The first attempt of all is not the last one too, however long it took.
    too_old = claimed.age > 0 and age >= route.gives_up_after.total_seconds()
    return given_up(route, doubtful) if used_up or too_old else EventState.PENDING


def given_up(route: Route, doubtful: bool) -> EventState:
    """What an event becomes whose attempts are used up: nobody calls dead what a receiver may have acted on."""
    return (
        EventState.IN_DOUBT
        if doubtful and route.remembers is not None and route.in_doubt != "resend"
        else EventState.DEAD
    )


def _is_forgotten(claimed: Claimed, route: Route) -> bool:
    """Whether the event may have arrived, and this attempt might reach somebody who does not know its id."""
    if claimed.doubt is None:
        return False
    if claimed.destination != route.destination:
        return route.remembers is not None or claimed.message.event_type in NEVER_TWICE
    if route.remembers is None:
        return False
    reached = claimed.doubt + time.monotonic() - claimed.at + route.limit.total_seconds()
    return reached >= route.remembers.total_seconds()


def _is_asked_first(claimed: Claimed, route: Route) -> bool:
    """Whether the receiver is asked for it although nothing says that it may have it.

    Such a record is lost where the database was restored, and the receiver may have forgotten the id since.
    """
    costly = claimed.message.event_type in NEVER_TWICE
    return costly and claimed.doubt is None and route.in_doubt == "look_up" and route.remembers is not None


def _reconsider(claimed: Claimed, route: Route, transport: Transport) -> Ended | None:
    """What becomes of an event that was forgotten, without sending it; None: it is to be sent after all."""
    if claimed.destination != route.destination:
        reason = f"{claimed.destination} may have it; its route leads to {route.destination} by now."
        return Ended(claimed, EventState.IN_DOUBT, reason=reason, counts=False)
    if route.in_doubt == "hold":
        reason = "The receiver may have it from an earlier attempt and may not recognise its id any more."
        return Ended(claimed, EventState.IN_DOUBT, reason=reason, counts=False)
    found = transport.look_up(claimed.message)
    match found.verdict:
        case Verdict.DELIVERED:
            return Ended(claimed, EventState.DELIVERED, found)
        case Verdict.REFUSED:
            return None
        case _:
            return Ended(claimed, _next(claimed, route, claimed.doubt is not None), found, found.error)


_COMMIT = """
    UPDATE outbox_event SET doubtful_since = coalesce(doubtful_since, clock_timestamp())
    WHERE id = %(id)s::bigint AND attempts = %(attempt)s::integer AND state = 'INFLIGHT'
        AND lease_until > clock_timestamp()
"""
