"""Finishing: what is known of attempts is written down, fenced by their number; overtaken ones change nothing.

What concerns nobody but the event itself is one statement. Ends that others must learn of (a recorder of the business,
operators by an alert, the stop of a destination that is gone) are written in one transaction with what they learn.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Literal

from sqlalchemy import Connection, Engine

from ticketflow_orch.db.engine import transaction
from ticketflow_orch.db.errors import database_fault
from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.formatting.text import without_addresses
from ticketflow_orch.outbox.alerts import ALERT, Alert, alert_all, alert_once
from ticketflow_orch.outbox.delivery import Outcome, Verdict
from ticketflow_orch.outbox.delivery.handlers import EventKind, Fate, Recorded
from ticketflow_orch.outbox.relay.fetch import Claimed

if TYPE_CHECKING:
    from ticketflow_orch.outbox.relay.pacing import Failing

_LONGEST_TEXT = 2_000
_TOLD = {"DEAD": "OutboxEventDead", "IN_DOUBT": "OutboxEventInDoubt", "HELD": "OutboxEventHeld"}
_LOG = logging.getLogger(__name__)

State = Literal["PENDING", "DELIVERED", "DEAD", "IN_DOUBT", "SUPPRESSED", "HELD"]


@dataclass(frozen=True, slots=True)
class Backoff:
    """Full jitter: a wait between nothing and `base`, doubled for every further attempt that counts, at most `cap`.

    A receiver's own Retry-After is a lower bound, up to `longest_wish`. What came when too much came at once waits for
    `longest_moment` at most.
    """

    base: timedelta = timedelta(seconds=5)
    cap: timedelta = timedelta(hours=1)
    longest_wish: timedelta = timedelta(days=1)
    longest_moment: timedelta = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Ended:
    """What becomes of an event after an attempt.

    `reason` is for people. `doubt`: whether the receiver may have it from this attempt (True), certainly has it not
    (False), or nothing new is known (None). `counts`: whether the attempt counts against the route's limit. `gone`:
    the destination that wants nothing any more. `reconsider_until`: until when a suppressed event is looked at again.
    `throttled`: it comes again in a moment, since too much came at once.
    """

    claimed: Claimed
    state: State
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


@dataclass(frozen=True, slots=True)
class Finisher:
    """Writes down ends; `owner` stops destinations, alerts happen at the business time that `now` tells."""

    engine: Engine
    kinds: Mapping[str, EventKind]
    backoff: Backoff
    owner: str
    now: Callable[[], datetime]

    def finish(self, connection: Connection, ended: Sequence[Ended]) -> Counter[str]:
        """Write down `ended`; how many came to which state, `overtaken` and `unrecorded` ones counted as such.

        `connection` commits each statement by itself. An end whose recorder refuses it is not written: the event stays
        claimed until its lease is over, and is then tried again.
        """
        quiet = [end for end in ended if not self._is_told(end)]
        done = _count(quiet, _write(connection, quiet, self.backoff)) if quiet else Counter()
        told = sorted((end for end in ended if self._is_told(end)), key=_kind)
        for _, same_kind in groupby(told, key=_kind):
            done += self._tell(list(same_kind))
        return done

    def _is_told(self, end: Ended) -> bool:
        if end.gone is not None or end.state in {"DEAD", "IN_DOUBT", "HELD"}:
            return True
        kind = self.kinds.get(_kind(end))
        return end.state != "PENDING" and kind is not None and kind.recorder is not None

    def _tell(self, ends: list[Ended]) -> Counter[str]:
        try:
            with transaction(self.engine) as connection:
                done = _write(connection, ends, self.backoff)
                self._record(connection, done)
        except Exception as error:
            # Whatever ails one recorder must not keep the others' ends from being written; a database that is away ails
            # all of them, for a moment.
            fault = database_fault(error)
            if fault is not None and fault.is_transient:
                raise
            if len(ends) == 1:
                _LOG.exception("The end of event %s cannot be recorded.", ends[0].claimed.message.event_id)
                return Counter(unrecorded=1)
            return sum((self._tell([one]) for one in ends), Counter())
        return _count(ends, done)

    def _record(self, connection: Connection, ends: Sequence[Ended]) -> None:
        recorded = [_recorded(end) for end in ends if end.state != "PENDING"]
        record(connection, self.kinds, recorded)
        now = self.now()
        alert_all(connection, [alert for end in ends if (alert := alert_of(end, now)) is not None], now)
        for destination in sorted({end.gone for end in ends if end.gone is not None}):
            self._stop(connection, destination, next(end for end in ends if end.gone == destination), now)

    def _stop(self, connection: Connection, destination: str, end: Ended, now: datetime) -> None:
        reason = None if end.reason is None else without_addresses(end.reason)
        values = {"name": destination, "reason": reason, "stopped_by": f"relay {self.owner}"}
        since = connection.exec_driver_sql(_STOP, values).scalar_one_or_none()
        if since is not None:
            told = {"destination": destination, "reason": reason}
            key = f"{destination} {since.isoformat()}"
            alert_once(connection, Alert("DestinationGone", key, told, subject=destination), now)


def tell_of_destination(engine: Engine, failing: Failing, now: datetime) -> None:
    """Alert of a destination that has failed for long, once for each time that it does."""
    told = {"destination": failing.destination, "failing_since": failing.since.isoformat(), "error": failing.error}
    key = f"{failing.destination} {failing.since.isoformat()}"
    alert = Alert("DestinationFailing", key, told, subject=failing.destination)
    with transaction(engine) as connection:
        alert_once(connection, alert, now)


def record(connection: Connection, kinds: Mapping[str, EventKind], recorded: Sequence[Recorded]) -> None:
    """Let the business know what became of its events, in the caller's transaction."""
    for event_type, events in groupby(
        sorted(recorded, key=lambda one: one.message.event_type), key=lambda one: one.message.event_type
    ):
        kind = kinds.get(event_type)
        if kind is not None and kind.recorder is not None:
            kind.recorder(connection, list(events))


def alert_of(end: Ended, now: datetime) -> Alert | None:
    """What operators learn of an event that is dead, in doubt or held, with the others of its destination.

    Never of one that is an alert itself.
    """
    message = end.claimed.message
    kind = _TOLD.get(end.state)
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


def answer(outcome: Outcome | None) -> str | None:
    """What a receiver said, as one text that Postgres takes whatever it was."""
    if outcome is None or (outcome.status is None and not outcome.response):
        return None
    return storable(f"{outcome.status or ''} {outcome.response}".strip())


def storable(words: str) -> str:
    """The beginning of `words`, without what no text column takes."""
    return words[:_LONGEST_TEXT].replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def _kind(end: Ended) -> str:
    return end.claimed.message.event_type


def _recorded(end: Ended) -> Recorded:
    state: Fate = end.state  # type: ignore[assignment] # PENDING is not recorded
    outcome = end.outcome
    if outcome is None and state in _TOLD:
        outcome = Outcome(Verdict.UNKNOWN, end.reason)
    return Recorded(end.claimed.message, state, outcome)


def _count(ends: Sequence[Ended], done: Sequence[Ended]) -> Counter[str]:
    return Counter(end.state for end in done) + Counter(overtaken=len(ends) - len(done))


def _write(connection: Connection, ends: Sequence[Ended], backoff: Backoff) -> list[Ended]:
    """Those of `ends` that were still ours."""
    by_id = {end.claimed.id: end for end in ends}
    if all(end.state == "DELIVERED" for end in ends):
        values = _fence(ends) | {"responses": [answer(end.outcome) for end in ends]}
        rows = connection.exec_driver_sql(_DELIVERED, values)
    else:
        values = _fence(ends) | {
            "states": [end.state for end in ends],
            "reasons": [None if end.reason is None else storable(end.reason) for end in ends],
            "responses": [answer(end.outcome) for end in ends],
            "wishes": [None if end.outcome is None else end.outcome.retry_after for end in ends],
            "doubts": [end.doubt for end in ends],
            "count": [end.counts for end in ends],
            "reconsider": [end.reconsider_until for end in ends],
            "throttled": [end.throttled for end in ends],
            "destinations": [end.to for end in ends],
            "outcomes": [_outcome(end) for end in ends],
            "took": [time.monotonic() - end.claimed.at for end in ends],
            "longest_moment": backoff.longest_moment.total_seconds(),
            "base": backoff.base.total_seconds(),
            "cap": backoff.cap.total_seconds(),
            "longest_wish": backoff.longest_wish.total_seconds(),
        }
        rows = connection.exec_driver_sql(_ENDED, values)
    return [by_id[event_id] for event_id in rows.scalars()]


def _outcome(end: Ended) -> str | None:
    """How the attempt ended, where one was made that its event's own row will not tell of."""
    if end.state in {"DELIVERED", "SUPPRESSED", "HELD"}:
        return None
    return "none" if end.outcome is None else end.outcome.verdict.value


def _fence(ends: Sequence[Ended]) -> dict[str, object]:
    return {"ids": [end.claimed.id for end in ends], "attempts": [end.claimed.message.attempt for end in ends]}


_DELIVERED = sql(__file__, "delivered")
_ENDED = sql(__file__, "ended")

_STOP = """
    INSERT INTO delivery_stop (kind, name, reason, stopped_by)
    VALUES ('DESTINATION', %(name)s, %(reason)s, %(stopped_by)s)
    ON CONFLICT (kind, name) DO NOTHING RETURNING stopped_at
"""
