"""The relay: takes events from the outbox to the outside world, at least once, in the order of each aggregate.

What makes it safe, whatever is killed, frozen or started twice: an event is claimed by an UPDATE that counts the
attempt, and what becomes of it is written by another that names this attempt. Between the two nothing is open in the
database. Whoever holds an event and goes away holds it until its lease is over.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy import Connection, Engine

from ticketflow_orch import clock
from ticketflow_orch.local.account import owner_name
from ticketflow_orch.outbox.delivery.configuration import Delivery
from ticketflow_orch.outbox.delivery.handlers import EventKind
from ticketflow_orch.outbox.relay import fetch
from ticketflow_orch.outbox.relay.completer import Backoff, Finisher
from ticketflow_orch.outbox.relay.due import Round, is_due
from ticketflow_orch.outbox.relay.fetch import Claimed, Lost
from ticketflow_orch.outbox.relay.listening import Listener
from ticketflow_orch.outbox.relay.pacing import Patience
from ticketflow_orch.outbox.relay.producer import Lane
from ticketflow_orch.outbox.relay.state import Result, Shift

__all__ = [
    "RESIDENT",
    "Backoff",
    "Drained",
    "Patience",
    "Round",
    "connections_for",
    "drain",
    "is_due",
    "is_resident",
    "longest_attempt",
]

# What a relay that stays calls its work, by which its sessions are known.
RESIDENT = "outbox deliver --forever"
# In seconds: for how long lost events are tried before the lanes get their turn again, how long at most for each of
# them, and how often it is asked whether there are any.
_RETRYING = 10.0
_ALONE = 2.0
_LOOK = 0.1
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Drained:
    """What a drain did. `overtaken`: attempts whose event was no longer ours when they ended.

    `unrecorded`: ends that the business refused to record, see the log; their events are tried again after their lease.
    `left`: events that are due all the same, blocked and stopped ones included; at most 100,000 are counted.
    """

    delivered: int
    retried: int
    dead: int
    suppressed: int
    in_doubt: int
    held: int
    overtaken: int
    unrecorded: int
    left: int
    seconds: float


def connections_for(delivery: Delivery) -> int:
    """How many connections a drain may want at once.

    Two a lane, one for its transactions, one for a lost event that is tried by itself, a few for commits, and one that
    listens.
    """
    return 4 * len(delivery.destinations) + 5


def is_resident(connection: Connection) -> bool:
    """Whether a relay that stays is connected to this database."""
    return bool(connection.exec_driver_sql(_RESIDENT, {"name": f"%{RESIDENT}%"}).scalar_one())


def longest_attempt(delivery: Delivery) -> timedelta:
    """How long an attempt that has begun may take before it comes to its end."""
    return max(route.limit for route in delivery.every_route())


def drain(
    engine: Engine,
    delivery: Delivery,
    kinds: Mapping[str, EventKind],
    *,
    budget: float = 50,
    in_flight: int | None = None,
    batch: int = 500,
    patience: float = 30,
    backoff: Backoff | None = None,
    patience_with: Patience | None = None,
    now: Callable[[], datetime] = clock.now,
    stop: threading.Event | None = None,
    agreed: Callable[[Connection], None] | None = None,
    resident: bool = False,
) -> Drained:
    """Deliver until nothing is due, or `budget` seconds are over, or `stop` is set.

    `in_flight` bounds the deliveries under way to each destination, in place of its own `concurrency`, `batch` the
    events claimed for it at once. What is claimed is begun within `patience` seconds or given back; its lease is that
    and what its route allows an attempt. Attempts that have begun come to their end, however long the route allows them
    to take, and as long as that takes the other destinations are served; whatever is claimed and not begun goes back at
    once, without having used up an attempt. `patience_with` destinations that fail says how long they are left alone.
    `engine` should offer `connections_for(delivery)`. `agreed` is asked before anything is claimed and about twice a
    second: by raising TicketflowError it ends the drain. A `resident` drain waits for what comes, and hears of it at
    once, until `stop` is set.

    Raises:
        InvalidInput: by `agreed`.
        DBAPIError: the database refuses, or was away when the time was over; what was claimed is due again when its
            lease is over.
    """
    began = time.monotonic()
    shift = Shift(
        engine=engine,
        delivery=delivery,
        kinds=kinds,
        finisher=Finisher(engine, kinds, backoff or Backoff(), owner_name(), now),
        in_flight=in_flight,
        batch=batch,
        patience=patience,
        until=math.inf if resident else began + budget,
        stop=stop or threading.Event(),
        agreed=agreed,
        resident=resident,
        patience_with=patience_with or Patience(),
    )
    _work(shift)
    with engine.connect() as connection:
        left = connection.exec_driver_sql(_LEFT).scalar_one()
    tally = shift.tally
    return Drained(
        delivered=tally["DELIVERED"],
        retried=tally["PENDING"],
        dead=tally["DEAD"],
        suppressed=tally["SUPPRESSED"],
        in_doubt=tally["IN_DOUBT"],
        held=tally["HELD"],
        overtaken=tally["overtaken"],
        unrecorded=tally["unrecorded"],
        left=left,
        seconds=time.monotonic() - began,
    )


def _work(shift: Shift) -> None:
    """Run all lanes to their end, with lost events tried in between."""
    lanes = [Lane(shift, name) for name in sorted(shift.delivery.destinations)]
    shift.busy.update(shift.delivery.destinations)
    listener = Listener(shift.engine, lanes) if shift.resident else None
    with ThreadPoolExecutor(2 * len(lanes), thread_name_prefix="relay") as pool:
        running = [pool.submit(lane.run) for lane in lanes]
        try:
            while not wait(running, timeout=_LOOK, return_when=FIRST_EXCEPTION).done >= set(running):
                if any(lane.done() and lane.exception() for lane in running):
                    break
                if shift.has_lost_to_retry() and not shift.over():
                    _retry_lost(shift, lanes, pool)
        finally:
            # Told to end while it waits, or failed: the lanes give back what they have not begun.
            if not all(lane.done() for lane in running):
                shift.stop.set()
            for lane in lanes:
                lane.call()
            if listener is not None:
                listener.close()
    for one in running:
        one.result()


def _retry_lost(shift: Shift, lanes: Sequence[Lane], pool: ThreadPoolExecutor) -> None:
    """Try events whose holders went away, one by one, while as little else of this process is in flight as can be.

    An event that ends the process that delivers it must take no others along: it would use up their attempts with its
    own. Alone it uses up its own only, and is dead in the end. Whatever it is, it shows at once: an attempt that takes
    its time goes on beside the others.
    """
    shift.pause.set()
    try:
        until = time.monotonic() + _ALONE
        for lane in lanes:
            lane.call()
        for lane in lanes:
            lane.quiet.wait(max(until - time.monotonic(), 0))
        until = time.monotonic() + _RETRYING
        for lost in shift.take_lost():
            if lost.to in shift.slow:
                continue
            if shift.over() or time.monotonic() >= until:
                break
            trying = pool.submit(_retry, shift, lost)
            if not wait([trying], timeout=_ALONE).done:
                shift.slow.add(lost.to)
                trying.add_done_callback(partial(_no_longer_slow, shift, lost.to))
            elif trying.exception() is not None:
                _LOG.warning("Event %s, which was left behind, is tried later: %s", lost.id, trying.exception())
                break
    finally:
        shift.retried()
        for lane in lanes:
            lane.call()


def _no_longer_slow(shift: Shift, destination: str, _: Future[None]) -> None:
    shift.slow.discard(destination)


def _retry(shift: Shift, lost: Lost) -> None:
    pace = shift.paces[lost.to]
    with shift.autocommit() as connection:
        shift.know(connection, anew=True)
        trying = pace.condition.is_open
        if trying and not pace.probe(connection, shift.leases[lost.to]):
            return
        try:
            wanted = shift.wanted(connection, lost.to, anew=False)
            may_go = lost.event_type in wanted.types
            claimed = fetch.claim_lost(connection, wanted, lost) if may_go else None
            if claimed is not None:
                _send_alone(shift, connection, claimed)
        finally:
            if trying and pace.probing:
                pace.forgo(connection)


def _send_alone(shift: Shift, connection: Connection, claimed: Claimed) -> None:
    ended: list[Result | None] = [claimed]
    try:
        ready = shift.begin(connection, [claimed])
        ended = [shift.send(one) for one in ready]
    finally:
        # What could not be begun goes back, long before its lease is over.
        shift.end(connection, ended)


_LEFT = """
    SELECT count(*) FROM (
        SELECT FROM outbox_event WHERE ended_at IS NULL AND available_at <= statement_timestamp() LIMIT 100000
    ) AS due
"""

_RESIDENT = """
    SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE %(name)s)
"""
