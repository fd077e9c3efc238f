"""Lost events: those whose holders went away are tried one by one, while as little else as can be is in flight.

An event that ends the process that delivers it must take no others along: it would use up their attempts with its own.
Alone it uses up its own only, and is dead in the end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial

from sqlalchemy import Connection

from ticketflow_orch.outbox.relay import fetch
from ticketflow_orch.outbox.relay.connections import autocommit
from ticketflow_orch.outbox.relay.ended import Result
from ticketflow_orch.outbox.relay.fetch import Claimed, Lost
from ticketflow_orch.outbox.relay.pipeline import Pipeline
from ticketflow_orch.outbox.relay.prepare import prepare
from ticketflow_orch.outbox.relay.producer import Producer

# In seconds: for how long lost events are tried before the producers get their turn again, and how long at most for
# each of them.
_RETRYING = 10.0
_ALONE = 2.0
_LOG = logging.getLogger(__name__)


def retry_lost(pipeline: Pipeline, producers: Sequence[Producer], pool: ThreadPoolExecutor) -> None:
    """Try the lost events that were found, the oldest first, while `producers` stand aside.

    Whatever one of them is, it shows at once: an attempt that takes its time goes on beside the others.
    """
    state = pipeline.state
    state.pause.set()
    try:
        until = time.monotonic() + _ALONE
        for producer in producers:
            producer.wake()
        for producer in producers:
            producer.quiet.wait(max(until - time.monotonic(), 0))
        until = time.monotonic() + _RETRYING
        for lost in state.take_lost():
            if lost.to in state.slow:
                continue
            if state.over() or time.monotonic() >= until:
                break
            trying = pool.submit(_retry, pipeline, lost)
            if not wait([trying], timeout=_ALONE).done:
                state.slow.add(lost.to)
                trying.add_done_callback(partial(_no_longer_slow, pipeline, lost.to))
            elif trying.exception() is not None:
                _LOG.warning("Event %s, which was left behind, is tried later: %s", lost.id, trying.exception())
                break
    finally:
        state.resume()
        for producer in producers:
            producer.wake()


def _no_longer_slow(pipeline: Pipeline, destination: str, _: Future[None]) -> None:
    pipeline.state.slow.discard(destination)


def _retry(pipeline: Pipeline, lost: Lost) -> None:
    pace = pipeline.paces[lost.to]
    with autocommit(pipeline.config.engine) as connection:
        pipeline.knowledge.refresh(connection, anew=True)
        trying = pace.condition.is_open
        if trying and not pace.probe(connection, pipeline.config.leases[lost.to]):
            return
        try:
            wanted = pipeline.knowledge.wanted(connection, lost.to, anew=False)
            may_go = lost.event_type in wanted.types
            claimed = fetch.claim_lost(connection, wanted, lost) if may_go else None
            if claimed is not None:
                _send_alone(pipeline, connection, claimed)
        finally:
            if trying and pace.probing:
                pace.forgo(connection)


def _send_alone(pipeline: Pipeline, connection: Connection, claimed: Claimed) -> None:
    results: list[Result] = [claimed]
    try:
        ready = prepare(connection, pipeline.config, pipeline.completer, [claimed])
        results = [pipeline.executor.send(one) for one in ready]
    finally:
        # What could not be begun goes back, long before its lease is over.
        pipeline.completer.complete(connection, results)
