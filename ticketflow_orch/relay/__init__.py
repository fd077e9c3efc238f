"""The relay: takes events from the outbox to the outside world, at least once, in the order of each aggregate.

What makes it safe, whatever is killed, frozen or started twice: an event is claimed by an UPDATE that counts the
attempt, and what becomes of it is written by another that names this attempt. Between the two nothing is open in the
database. Whoever holds an event and goes away holds it until its lease is over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, Engine, text

from ticketflow_orch import clock
from ticketflow_orch.delivery.configuration import Delivery
from ticketflow_orch.delivery.preparing import EventKind
from ticketflow_orch.executions import owner_name
from ticketflow_orch.relay import claiming
from ticketflow_orch.relay.finishing import Backoff, Finisher
from ticketflow_orch.relay.lanes import Lane
from ticketflow_orch.relay.looking import Round, is_due
from ticketflow_orch.relay.reconsidering import reconsider
from ticketflow_orch.relay.shift import Shift

__all__ = ["Backoff", "Drained", "Round", "connections_for", "drain", "is_due", "longest_attempt"]

# In seconds: for how long lost events are tried before the lanes get their turn again.
_RETRYING = 10.0


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
    """How many connections a drain may want at once: two a lane, one for its transactions, a few for commits."""
    return 3 * len(delivery.destinations) + 4


def longest_attempt(delivery: Delivery) -> timedelta:
    """How long an attempt that has begun may take before it comes to its end."""
    return max(route.limit for route in (delivery.default, *delivery.routes.values()))


def drain(
    engine: Engine,
    delivery: Delivery,
    kinds: Mapping[str, EventKind],
    *,
    budget: float = 50,
    in_flight: int = 16,
    batch: int = 500,
    patience: float = 30,
    backoff: Backoff | None = None,
    now: Callable[[], datetime] = clock.now,
    stop: threading.Event | None = None,
    agreed: Callable[[Connection], None] | None = None,
) -> Drained:
    """Deliver until nothing is due, or `budget` seconds are over, or `stop` is set.

    First the business is asked again about what it kept back for a reason that may have passed.
    `in_flight` bounds the deliveries under way to each destination, `batch` the events claimed for it at once. What is
    claimed is begun within `patience` seconds or given back; its lease is that and what its route allows an attempt.
    Attempts that have begun come to their end, however long the route allows them to take; whatever is claimed and not
    begun goes back at once, without having used up an attempt. `engine` should offer `connections_for(delivery)`.
    `agreed` is asked before anything is claimed and about twice a second: by raising InputError it ends the drain.

    Raises:
        InputError: by `agreed`.
        DBAPIError: the database went away; what was claimed is due again when its lease is over.
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
        until=began + budget,
        stop=stop or threading.Event(),
        agreed=agreed,
    )
    reconsider(engine, kinds, now())
    while not shift.over():
        claimed = _work_lanes(shift)
        if shift.lost:
            _retry_lost(shift)
        elif not claimed:
            break
    with engine.connect() as connection:
        left = connection.execute(_LEFT).scalar_one()
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


def _work_lanes(shift: Shift) -> int:
    """One turn of all lanes; how many events they claimed."""
    shift.busy.update(shift.delivery.destinations)
    with ThreadPoolExecutor(len(shift.delivery.destinations), thread_name_prefix="relay") as pool:
        running = [pool.submit(Lane(shift, name).run) for name in sorted(shift.delivery.destinations)]
        try:
            wait(running, return_when=FIRST_EXCEPTION)
            if not all(lane.done() for lane in running):
                shift.stop.set()
        except BaseException:
            # Told to end while it waits; the lanes give back what they have not begun.
            shift.stop.set()
            raise
    return sum(lane.result() for lane in running)


def _retry_lost(shift: Shift) -> None:
    """Try events whose holders went away, one by one, while nothing else of this process is in flight.

    An event that ends the process that delivers it must take no others along: it would use up their attempts with its
    own. Alone it uses up its own only, and is dead in the end.
    """
    until = time.monotonic() + _RETRYING
    with shift.autocommit() as connection:
        for lost in sorted(shift.lost, key=lambda one: one.id):
            if shift.over() or time.monotonic() >= until:
                break
            wanted = shift.wanted(connection, shift.delivery.route(lost.event_type).destination, anew=True)
            if lost.event_type not in wanted.types:
                continue
            claimed = claiming.claim_lost(connection, wanted, lost)
            if claimed is not None:
                for one in shift.begin(connection, [claimed]):
                    shift.end(connection, [shift.send(one)])
    shift.retried()


_LEFT = text("""
    SELECT count(*) FROM (
        SELECT FROM outbox_event WHERE ended_at IS NULL AND available_at <= statement_timestamp() LIMIT 100000
    ) AS due
""")
