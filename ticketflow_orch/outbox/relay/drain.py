"""Draining: a producer for each destination, run to the end, with lost events tried in between."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, Engine

from ticketflow_orch import clock
from ticketflow_orch.local.account import owner_name
from ticketflow_orch.outbox.delivery.configuration import Delivery
from ticketflow_orch.outbox.delivery.handlers import EventKind
from ticketflow_orch.outbox.events import EventState
from ticketflow_orch.outbox.relay.backoff import Backoff
from ticketflow_orch.outbox.relay.config import Patience, RelayConfig
from ticketflow_orch.outbox.relay.listening import Listener
from ticketflow_orch.outbox.relay.lost import retry_lost
from ticketflow_orch.outbox.relay.pipeline import Pipeline, pipeline_of
from ticketflow_orch.outbox.relay.producer import Producer

# What a relay that stays calls its work, by which its sessions are known.
RESIDENT = "outbox deliver --forever"
# In seconds: how often it is asked whether there are lost events to try.
_LOOK = 0.1


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


def is_resident(connection: Connection) -> bool:
    """Whether a relay that stays is connected to this database."""
    return bool(connection.exec_driver_sql(_RESIDENT, {"name": f"%{RESIDENT}%"}).scalar_one())


def longest_attempt(delivery: Delivery) -> timedelta:
    """How long an attempt that has begun may take before it ends."""
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

    `in_flight` bounds the deliveries in flight to each destination, in place of its own `concurrency`, `batch` the
    events claimed for it at once. What is claimed is begun within `patience` seconds or given back; its lease is that
    and what its route allows an attempt. Attempts that have begun go on to their end, however long the route allows
    them to take, and as long as that takes the other destinations are served; whatever is claimed and not begun goes
    back at once, without having used up an attempt. `patience_with` destinations that fail says how long they are left
    alone. `engine` should offer `connections_for(delivery)`. `agreed` is asked before anything is claimed and about
    twice a second: by raising TicketflowError it ends the drain. A `resident` drain waits for what comes, and hears of
    it at once, until `stop` is set.

    Raises:
        TicketflowError: by `agreed`.
        DBAPIError: the database refuses, or was away when the time was over; what was claimed is due again when its
            lease is over.
    """
    began = time.monotonic()
    config = RelayConfig(
        engine=engine,
        delivery=delivery,
        kinds=kinds,
        owner=owner_name(),
        now=now,
        in_flight=in_flight,
        batch=batch,
        patience=patience,
        backoff=backoff or Backoff(),
        patience_with=patience_with or Patience(),
        agreed=agreed,
        resident=resident,
    )
    until = math.inf if resident else began + budget
    pipeline = pipeline_of(config, until, stop or threading.Event())
    _run(pipeline)
    with engine.connect() as connection:
        left = connection.exec_driver_sql(_LEFT).scalar_one()
    tally = pipeline.state.tally
    return Drained(
        delivered=tally[EventState.DELIVERED],
        retried=tally[EventState.PENDING],
        dead=tally[EventState.DEAD],
        suppressed=tally[EventState.SUPPRESSED],
        in_doubt=tally[EventState.IN_DOUBT],
        held=tally[EventState.HELD],
        overtaken=tally["overtaken"],
        unrecorded=tally["unrecorded"],
        left=left,
        seconds=time.monotonic() - began,
    )


def _run(pipeline: Pipeline) -> None:
    """Run all producers to their end, with lost events tried in between."""
    state = pipeline.state
    producers = [Producer(pipeline, name) for name in sorted(pipeline.config.delivery.destinations)]
    listener = Listener(pipeline.config.engine, producers) if pipeline.config.resident else None
    with ThreadPoolExecutor(2 * len(producers), thread_name_prefix="relay") as pool:
        running = [pool.submit(producer.run) for producer in producers]
        try:
            while not wait(running, timeout=_LOOK, return_when=FIRST_EXCEPTION).done >= set(running):
                if any(one.done() and one.exception() for one in running):
                    # Not `stop`: nobody waits for the others, who may know of attempts that are not written down yet.
                    state.end()
                    break
                if state.has_lost_to_retry() and not state.over():
                    retry_lost(pipeline, producers, pool)
        except BaseException:
            # Asked to stop while it waits: the producers give back what they have not begun.
            state.stop.set()
            raise
        finally:
            for producer in producers:
                producer.wake()
            if listener is not None:
                listener.close()
    for one in running:
        one.result()


_LEFT = """
    SELECT count(*) FROM (
        SELECT FROM outbox_event WHERE ended_at IS NULL AND available_at <= statement_timestamp() LIMIT 100000
    ) AS due
"""

_RESIDENT = """
    SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE %(name)s)
"""
