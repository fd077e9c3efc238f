"""The completer: what is known of attempts is written down, fenced by their number; overtaken ones change nothing.

What concerns nobody but the event itself is one statement. Ends that others must learn of (a recorder of the business,
operators by an alert, the stop of a destination that is gone) are written in one transaction with what they learn. What
was claimed and not sent is given back in here too.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import groupby

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from ticketflow_orch.db.engine import transaction
from ticketflow_orch.db.errors import database_fault
from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.formatting.text import without_addresses
from ticketflow_orch.outbox.alerts import ALERT, Alert, alert_all, alert_once
from ticketflow_orch.outbox.delivery import Outcome, Verdict
from ticketflow_orch.outbox.delivery.handlers import EventKind, Recorded
from ticketflow_orch.outbox.events import EventState
from ticketflow_orch.outbox.relay import fetch
from ticketflow_orch.outbox.relay.backoff import NEXT_TRY, Backoff
from ticketflow_orch.outbox.relay.config import RelayConfig
from ticketflow_orch.outbox.relay.connections import autocommit
from ticketflow_orch.outbox.relay.ended import Ended, Result, storable
from ticketflow_orch.outbox.relay.fetch import Claimed
from ticketflow_orch.outbox.relay.knowledge import Knowledge
from ticketflow_orch.outbox.relay.pacing import Failing, Pace
from ticketflow_orch.outbox.relay.state import DrainState
from ticketflow_orch.outbox.stops import stop

# In seconds: for how long a database that is away is asked to take down what is known of attempts, for how long by a
# drain that was asked to stop, and how long is waited between two tries.
_WRITING_DOWN = 600.0
_WRITING_DOWN_AT_THE_END = 60.0
_LONGEST_WAIT = 5.0
_ALERTS = {
    EventState.DEAD: "OutboxEventDead",
    EventState.IN_DOUBT: "OutboxEventInDoubt",
    EventState.HELD: "OutboxEventHeld",
}
_LOG = logging.getLogger(__name__)


class Completer:
    """Writes down what came of claims. Safe to use from several threads, each with its own connection."""

    def __init__(self, config: RelayConfig, state: DrainState, knowledge: Knowledge, paces: Mapping[str, Pace]) -> None:
        self._config = config
        self._state = state
        self._knowledge = knowledge
        self._paces = paces

    def complete(self, connection: Connection, results: Sequence[Result]) -> None:
        """Write down what came of claims, all for one destination, and count it.

        `connection` commits each statement by itself. What is known must not go with one connection, nor with a
        database that is away for a moment: it is written down when another connection can be had. What was written
        before is fenced.

        Raises:
            SQLAlchemyError: no connection could be had for long.
        """
        try:
            self._complete(connection, results)
        except SQLAlchemyError:
            self._complete_later(results)
            raise

    def _complete_later(self, results: Sequence[Result]) -> None:
        began, wait = time.monotonic(), 0.1
        while True:
            try:
                with autocommit(self._config.engine) as fresh:
                    self._complete(fresh, results)
            except SQLAlchemyError:
                patience = _WRITING_DOWN_AT_THE_END if self._state.stop.is_set() else _WRITING_DOWN
                if time.monotonic() + wait >= began + patience:
                    raise
                time.sleep(wait)
                wait = min(2 * wait, _LONGEST_WAIT)
            else:
                return

    def _complete(self, connection: Connection, results: Sequence[Result]) -> None:
        ended = [one for one in results if isinstance(one, Ended)]
        if ended:
            self._state.count_ended(self._finish(connection, ended))
            if gone := {end.gone for end in ended if end.gone is not None}:
                # From now on its stop keeps it from being sent anything, until somebody ends that.
                self._knowledge.refresh(connection, anew=True)
                self._state.gone -= gone
        unsent = [one for one in results if isinstance(one, Claimed)]
        if unsent:
            fetch.give_back(connection, unsent)
        self._state.count_overtaken(sum(one is None for one in results))
        if ended:
            self._learn(connection, ended)

    def _finish(self, connection: Connection, ended: Sequence[Ended]) -> Counter[str]:
        """Write down `ended`; how many came to which state, `overtaken` and `unrecorded` ones counted as such.

        An end whose recorder refuses it is not written: the event stays claimed until its lease is over, and is then
        tried again.
        """
        quiet = [end for end in ended if not self._concerns_others(end)]
        done = _count(quiet, _write(connection, quiet, self._config.backoff)) if quiet else Counter()
        others = sorted((end for end in ended if self._concerns_others(end)), key=_kind)
        for _, same_kind in groupby(others, key=_kind):
            done += self._finish_with_others(list(same_kind))
        return done

    def _concerns_others(self, end: Ended) -> bool:
        if end.gone is not None or end.state in {EventState.DEAD, EventState.IN_DOUBT, EventState.HELD}:
            return True
        kind = self._config.kinds.get(_kind(end))
        return end.state != EventState.PENDING and kind is not None and kind.recorder is not None

    def _finish_with_others(self, ends: list[Ended]) -> Counter[str]:
        try:
            with transaction(self._config.engine) as connection:
                done = _write(connection, ends, self._config.backoff)
                self._let_others_learn(connection, done)
        except Exception as error:
            # What ails one recorder must not keep the others' ends from being written; a database that is away ails
            # all of them, for a moment.
            fault = database_fault(error)
            if fault is not None and fault.is_transient:
                raise
            if len(ends) == 1:
                _LOG.exception("The end of event %s cannot be recorded.", ends[0].claimed.message.event_id)
                return Counter(unrecorded=1)
            return sum((self._finish_with_others([one]) for one in ends), Counter())
        return _count(ends, done)

    def _let_others_learn(self, connection: Connection, ends: Sequence[Ended]) -> None:
        _record(connection, self._config.kinds, [_recorded(end) for end in ends if end.state != EventState.PENDING])
        now = self._config.now()
        alert_all(connection, [alert for end in ends if (alert := _alert_of(end, now)) is not None], now)
        for destination in sorted({end.gone for end in ends if end.gone is not None}):
            self._stop(connection, destination, next(end for end in ends if end.gone == destination), now)

    def _stop(self, connection: Connection, destination: str, end: Ended, now: datetime) -> None:
        reason = None if end.reason is None else without_addresses(end.reason)
        since = stop(connection, "DESTINATION", destination, reason, by=f"relay {self._config.owner}")
        if since is not None:
            payload = {"destination": destination, "reason": reason}
            key = f"{destination} {since.isoformat()}"
            alert_once(connection, Alert("DestinationGone", key, payload, subject=destination), now)

    def _learn(self, connection: Connection, ended: Sequence[Ended]) -> None:
        """Let the destination's pace follow from `ended`, and alert of a destination that has failed for long."""
        failing = self._paces[ended[0].to].note(connection, ended)
        if failing is not None and failing.seconds >= self._config.patience_with.alerted_after.total_seconds():
            self._alert_of_failing(failing)

    def _alert_of_failing(self, failing: Failing) -> None:
        since = failing.since.isoformat()
        payload = {"destination": failing.destination, "failing_since": since, "error": failing.error}
        key = f"{failing.destination} {since}"
        alert = Alert("DestinationFailing", key, payload, subject=failing.destination)
        now = self._config.now()
        with transaction(self._config.engine) as connection:
            alert_once(connection, alert, now)


def _record(connection: Connection, kinds: Mapping[str, EventKind], recorded: Sequence[Recorded]) -> None:
    """Let the business know what became of its events, in the caller's transaction."""
    by_type = sorted(recorded, key=lambda one: one.message.event_type)
    for event_type, events in groupby(by_type, key=lambda one: one.message.event_type):
        kind = kinds.get(event_type)
        if kind is not None and kind.recorder is not None:
            kind.recorder(connection, list(events))


def _alert_of(end: Ended, now: datetime) -> Alert | None:
    """What operators learn of an event that is dead, in doubt or held, with the others of its destination.

    Never of one that is an alert itself.
    """
    message = end.claimed.message
    kind = _ALERTS.get(end.state)
    if kind is None or message.aggregate_type == ALERT:
        return None
    outcome = _recorded(end).outcome
    payload = {
        "event_id": str(message.event_id),
        "event_type": message.event_type,
        "aggregate": f"{message.aggregate_type} {message.aggregate_id}",
        "attempt": message.attempt,
        "error": without_addresses(outcome.error) if outcome and outcome.error else None,
    }
    # After a restore attempts are counted anew, of an event that has the same id.
    key = f"{message.event_id} attempt {message.attempt} at {now.isoformat()}"
    return Alert(kind, key, payload, subject=end.claimed.destination, event_id=str(message.event_id))


def _answer(outcome: Outcome | None) -> str | None:
    """What a receiver said, as one text that Postgres takes whatever it was."""
    if outcome is None or (outcome.status is None and not outcome.response):
        return None
    return storable(f"{outcome.status or ''} {outcome.response}".strip())


def _kind(end: Ended) -> str:
    return end.claimed.message.event_type


def _recorded(end: Ended) -> Recorded:
    outcome = end.outcome
    if outcome is None and end.state in _ALERTS:
        outcome = Outcome(Verdict.UNKNOWN, end.reason)
    return Recorded(end.claimed.message, end.state, outcome)


def _count(ends: Sequence[Ended], done: Sequence[Ended]) -> Counter[str]:
    return Counter(end.state for end in done) + Counter(overtaken=len(ends) - len(done))


def _write(connection: Connection, ends: Sequence[Ended], backoff: Backoff) -> list[Ended]:
    """Those of `ends` that were still ours."""
    by_id = {end.claimed.id: end for end in ends}
    if all(end.state == EventState.DELIVERED for end in ends):
        values = _fence(ends) | {"responses": [_answer(end.outcome) for end in ends]}
        rows = connection.exec_driver_sql(_DELIVERED, values)
    else:
        values = _fence(ends) | {
            "states": [end.state for end in ends],
            "reasons": [None if end.reason is None else storable(end.reason) for end in ends],
            "responses": [_answer(end.outcome) for end in ends],
            "wishes": [None if end.outcome is None else end.outcome.retry_after for end in ends],
            "doubts": [end.doubt for end in ends],
            "count": [end.counts for end in ends],
            "reconsider": [end.reconsider_until for end in ends],
            "throttled": [end.throttled for end in ends],
            "destinations": [end.to for end in ends],
            "outcomes": [_outcome(end) for end in ends],
            "took": [time.monotonic() - end.claimed.at for end in ends],
        }
        values |= backoff.parameters()
        rows = connection.exec_driver_sql(_ENDED, values)
    return [by_id[event_id] for event_id in rows.scalars()]


def _outcome(end: Ended) -> str | None:
    """How the attempt ended, where one was made that its event's own row will not show."""
    if end.state in {EventState.DELIVERED, EventState.SUPPRESSED, EventState.HELD}:
        return None
    return "none" if end.outcome is None else end.outcome.verdict.value


def _fence(ends: Sequence[Ended]) -> dict[str, object]:
    return {"ids": [end.claimed.id for end in ends], "attempts": [end.claimed.message.attempt for end in ends]}


_DELIVERED = sql(__file__, "delivered")
_ENDED = sql(__file__, "ended", next_try=NEXT_TRY)
