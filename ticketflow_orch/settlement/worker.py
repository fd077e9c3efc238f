"""Draining a pass: workers take its chunks one by one, a transaction each, until none is due.

The chunk's row is the checkpoint. It is locked before its entries are posted and marked in the same transaction, so a
worker that is killed or frozen leaves a chunk that is either done or due, and nothing that outlives its transaction.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from psycopg.errors import UniqueViolation
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from ticketflow_orch.db.engine import transaction
from ticketflow_orch.db.errors import in_words, is_a, is_data_fault
from ticketflow_orch.db.retrying import retried
from ticketflow_orch.months import Month, Window
from ticketflow_orch.settlement.passes import Drained, IncompleteSettlementError, ParkedLimitError, drained, park
from ticketflow_orch.settlement.posting import Chunk, Pass, post_chunk

Progress = Callable[[Drained], None]


@dataclass(frozen=True, slots=True)
class Drain:
    """All that a worker needs to know; `stop` is looked at between chunks."""

    engine: Engine
    settlement: Pass
    windows: dict[Month, dict[str, Window]]
    run_id: str
    pause: float
    parked_limit: int
    stop: threading.Event
    # Set when the ledger turns out to hold entries of a month that a first pass took for untouched.
    posted_by_others: threading.Event = field(default_factory=threading.Event)
    # Whether to wait for what other workers have in hand, which becomes due again should one of them die.
    waits_for_others: bool = True
    # Set when one worker failed or the run was interrupted. Not `stop`: the run may go on with the pass that follows.
    abandoned: threading.Event = field(default_factory=threading.Event)

    def run(self, workers: int, progress: Progress) -> None:
        """Drain the pass with `workers` threads, this run's and other runs' together.

        Raises:
            ParkedLimitError: too many organizations had to be parked.
            IncompleteSettlementError: the run was asked to stop.
            DBAPIError: a statement failed for another reason than an organization's data.
        """
        with ThreadPoolExecutor(workers, thread_name_prefix="settlement") as pool:
            running = {pool.submit(self._work) for _ in range(workers)}
            try:
                while running:
                    finished, running = wait(running, timeout=1, return_when=FIRST_COMPLETED)
                    for future in finished:
                        future.result()
                    progress(retried(self.engine, self._state, self.stop))
            finally:
                # Also when this thread is interrupted: the workers end with the chunk that they hold.
                if running:
                    self.abandoned.set()

    def _work(self) -> None:
        idle = 0.02
        while not (self.stop.is_set() or self.abandoned.is_set()):
            # A chunk whose COMMIT had no answer is done or due, as its row says.
            if retried(self.engine, self._settle_one_chunk, self.abandoned):
                idle = 0.02
                if self.pause:
                    self.stop.wait(self.pause)
                continue
            if not self.waits_for_others:
                return
            state = retried(self.engine, self._state, self.abandoned)
            if state.done == state.total:
                return
            # What is left is in other workers' hands.
            time.sleep(idle)
            idle = min(idle * 2, 1.0)
        raise IncompleteSettlementError(
            f"The settlement of {self.settlement.month} was stopped; run it again to go on."
        )

    def _state(self) -> Drained:
        with self.engine.connect() as connection:
            return drained(connection, self.settlement)

    def _settle_one_chunk(self) -> bool:
        chunk, first = None, False
        try:
            with transaction(self.engine) as connection:
                chunk = _take_chunk(connection, self.settlement)
                if chunk is None:
                    return False
                first = self.settlement.number == 1 and not self.posted_by_others.is_set()
                posted = post_chunk(
                    connection, self.settlement, chunk, self.windows[chunk.origin], self.run_id, first=first
                )
                connection.exec_driver_sql(
                    _CHUNK_DONE,
                    _chunk_key(self.settlement, chunk)
                    | {"new": posted.rows_new, "existing": posted.rows_existing, "adjusted": posted.rows_adjusted}
                    | self._hand,
                )
        except DBAPIError as error:
            # What an organization's own rows can cause. Anything else aborts the run.
            if chunk is None or not is_data_fault(error):
                raise
            if first and is_a(error, UniqueViolation):
                self.posted_by_others.set()
            else:
                self._narrow_down(chunk, in_words(error))
        return True

    def _narrow_down(self, chunk: Chunk, error: str) -> None:
        """Replace a chunk that failed on data by its two halves, or park the one organization that is left."""
        key = _chunk_key(self.settlement, chunk)
        with transaction(self.engine) as connection:
            due = connection.exec_driver_sql(
                """
                    SELECT 1 FROM settlement_chunk
                    WHERE (month, pass, origin_month, low_id) = (%(month)s, %(pass)s, %(origin)s, %(low)s)
                        AND high_id IS NOT DISTINCT FROM %(high)s::bigint AND state = 'PLANNED'
                    FOR UPDATE
                """,
                key,
            ).one_or_none()
            if due is None:
                return
            if chunk.organizations is None:
                middle = connection.exec_driver_sql(_SECOND_HALF, key | {"last": chunk.last_id}).scalar_one_or_none()
            else:
                half = len(chunk.organizations) // 2
                middle = chunk.organizations[half] if half else None
            if middle is not None:
                connection.exec_driver_sql(_SPLIT, key | {"middle": middle})
                return
            self._park(connection, chunk, error)

    def _park(self, connection: Connection, chunk: Chunk, error: str) -> None:
        key = _chunk_key(self.settlement, chunk)
        parked = connection.exec_driver_sql(
            """
                SELECT count(*) FROM settlement_chunk
                WHERE (month, pass) = (%(month)s, %(pass)s) AND state = 'FAILED'
            """,
            self.settlement.key,
        ).scalar_one()
        failing = connection.exec_driver_sql(_FIRST, key).one()
        if parked >= self.parked_limit:
            raise ParkedLimitError(
                f"{parked} organizations are parked in {self.settlement.month} and {failing.external_ref} fails too "
                f"({error}); correct the data, or raise TICKETFLOW_PARKED_LIMIT, and settle it again."
            )
        park(connection, failing.id, chunk.origin, error)
        connection.exec_driver_sql(_CHUNK_FAILED, key | {"error": error} | self._hand)

    @property
    def _hand(self) -> dict[str, str]:
        return {"worker": worker_name(), "run": self.run_id}


def worker_name() -> str:
    """Which host, process and thread did something."""
    return f"{socket.gethostname()}/{os.getpid()}/{threading.current_thread().name}"


def _take_chunk(connection: Connection, settlement: Pass) -> Chunk | None:
    row = connection.exec_driver_sql(
        """
            SELECT origin_month, low_id, high_id, organizations FROM settlement_chunk
            WHERE month = %(month)s AND pass = %(pass)s AND state = 'PLANNED'
            ORDER BY origin_month, low_id
            LIMIT 1
            FOR UPDATE SKIP LOCKED
        """,
        settlement.key,
    ).one_or_none()
    if row is None:
        return None
    listed = None if row.organizations is None else tuple(row.organizations)
    return Chunk(Month.of_day(row.origin_month), row.low_id, row.high_id, listed)


def _chunk_key(settlement: Pass, chunk: Chunk) -> dict[str, object]:
    return settlement.key | {"origin": chunk.origin.first_day, "low": chunk.low_id, "high": chunk.high_id}


_CHUNK_DONE = """
    UPDATE settlement_chunk SET state = 'DONE', rows_new = %(new)s, rows_existing = %(existing)s,
        rows_adjusted = %(adjusted)s, worker = %(worker)s, run_id = %(run)s, begun_at = now(),
        finished_at = clock_timestamp()
    WHERE (month, pass, origin_month, low_id) = (%(month)s, %(pass)s, %(origin)s, %(low)s)
"""

_CHUNK_FAILED = """
    UPDATE settlement_chunk SET state = 'FAILED', error = %(error)s, worker = %(worker)s, run_id = %(run)s,
        begun_at = now(), finished_at = clock_timestamp()
    WHERE (month, pass, origin_month, low_id) = (%(month)s, %(pass)s, %(origin)s, %(low)s)
"""

# The first organization of the second half; none when only one is left.
_SECOND_HALF = """
    WITH range AS (
        SELECT count(*) AS organizations FROM organization
        WHERE id BETWEEN %(low)s::bigint AND %(last)s::bigint
    )
    SELECT id FROM organization
    WHERE id BETWEEN %(low)s::bigint AND %(last)s::bigint AND (SELECT organizations FROM range) > 1
    ORDER BY id OFFSET (SELECT organizations / 2 FROM range) LIMIT 1
"""

# The insertion reads the row as it was before: both queries see one snapshot.
_SPLIT = """
    WITH first_half AS (
        UPDATE settlement_chunk SET high_id = %(middle)s::bigint - 1, organizations = (
            SELECT array_agg(id ORDER BY id) FROM unnest(organizations) AS id WHERE id < %(middle)s::bigint)
        WHERE (month, pass, origin_month, low_id) = (%(month)s, %(pass)s, %(origin)s, %(low)s)
    )
    INSERT INTO settlement_chunk (month, pass, origin_month, low_id, high_id, organizations)
    SELECT month, pass, origin_month, %(middle)s::bigint, high_id, (
            SELECT array_agg(id ORDER BY id) FROM unnest(organizations) AS id WHERE id >= %(middle)s::bigint)
    FROM settlement_chunk
    WHERE (month, pass, origin_month, low_id) = (%(month)s, %(pass)s, %(origin)s, %(low)s)
"""

_FIRST = "SELECT id, external_ref FROM organization WHERE id >= %(low)s ORDER BY id LIMIT 1"
