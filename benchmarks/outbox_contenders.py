"""Who competes in the outbox benchmark, and how each of them fills its tables and works them off.

    python -m benchmarks.outbox_contenders NAME --url URL --log FILE

runs one of them until nothing is left, in a process of its own. The work is a line in FILE, one write per job, so that
it can be counted whatever is killed. All use the same server with fsync and synchronous_commit on, take up to BATCH
jobs from it at once, and may hand a job out again LEASE seconds after its holder died.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import asyncpg
import procrastinate
import uvloop
from pgqueuer import AsyncpgDriver, Job, Queries, QueueManager
from pgqueuer.types import QueueExecutionMode
from sqlalchemy import URL, make_url, text

from benchmarks.outbox_destinations import nothing, receiver
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.db.migrate import migrate
from ticketflow_orch.outbox.delivery.configuration import Delivery
from ticketflow_orch.outbox.relay import drain

BATCH = 500
LEASE = 10
# Ours delivers the events of one aggregate one after the other; the others know no order.
EVENTS_PER_AGGREGATE = 5
IN_FLIGHT = 16


@dataclass(frozen=True, slots=True)
class Contender:
    """`fill` puts in so many jobs, `work` works them off, `left` counts those that are not done."""

    fill: Callable[[str, int], None]
    work: Callable[[str, int], None]
    left: str


def fill_outbox(url: str, jobs: int) -> None:
    """Our tables, and events of many aggregates, a few of each."""
    migrate(make_url(url))
    engine = connect_engine(url, "benchmark")
    with engine.begin() as connection:
        connection.execute(_EVENTS, {"jobs": jobs, "aggregates": max(1, jobs // EVENTS_PER_AGGREGATE)})
    engine.dispose()


def relay(destination: Callable[[int], Delivery]) -> Callable[[str, int], None]:
    """Our relay, towards `destination`."""

    def work(url: str, log: int) -> None:
        engine = connect_engine(url, "benchmark", connections=10)
        delivery = destination(log)
        drain(engine, delivery, {}, budget=3600, in_flight=IN_FLIGHT, batch=BATCH, patience=LEASE)
        delivery.close()
        engine.dispose()

    return work


def fill_pgqueuer(url: str, jobs: int) -> None:
    """Its tables, and the jobs by its own batch of enqueues."""

    async def enqueue() -> None:
        driver = AsyncpgDriver(await asyncpg.connect(_dsn(url)))
        queries = Queries(driver)
        await queries.install()
        for first in range(0, jobs, 10_000):
            numbers = range(first, min(jobs, first + 10_000))
            await queries.enqueue(["work"] * len(numbers), [b"%d" % number for number in numbers], [0] * len(numbers))

    asyncio.run(enqueue())


def work_pgqueuer(url: str, log: int) -> None:
    """With asyncpg and uvloop, which is its fastest."""

    async def drained() -> None:
        manager = QueueManager(Queries(AsyncpgDriver(await asyncpg.connect(_dsn(url)))))

        @manager.entrypoint("work")
        async def work(job: Job) -> None:
            os.write(log, (job.payload or b"") + b"\n")

        await manager.run(
            dequeue_timeout=timedelta(seconds=1),
            batch_size=BATCH,
            mode=QueueExecutionMode.drain,
            heartbeat_timeout=timedelta(seconds=LEASE),
        )

    uvloop.run(drained())


def fill_procrastinate(url: str, jobs: int) -> None:
    """Its tables, and the jobs by its own batch."""
    app = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=_dsn(url)))
    with app.open():
        app.schema_manager.apply_schema()
        for first in range(0, jobs, 10_000):
            numbers = range(first, min(jobs, first + 10_000))
            app.configure_task("work", queue="work").batch_defer(*({"number": number} for number in numbers))


def work_procrastinate(url: str, log: int) -> None:
    """With as many jobs at once as ours has deliveries in flight; jobs of workers that died are retried first."""
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=_dsn(url)))

    @app.task(name="work", queue="work")
    async def work(number: int) -> None:
        os.write(log, b"%d\n" % number)

    async def drained() -> None:
        async with app.open_async():
            for job in await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=LEASE):
                await app.job_manager.retry_job(job)
            await app.run_worker_async(wait=False, concurrency=IN_FLIGHT, install_signal_handlers=False)

    asyncio.run(drained())


_OURS_LEFT = "SELECT count(*) FROM outbox_event WHERE ended_at IS NULL"

CONTENDERS = {
    "ours": Contender(fill_outbox, relay(nothing), _OURS_LEFT),
    "ours over HTTP": Contender(fill_outbox, relay(receiver), _OURS_LEFT),
    "pgqueuer": Contender(fill_pgqueuer, work_pgqueuer, "SELECT count(*) FROM pgqueuer"),
    "procrastinate": Contender(
        fill_procrastinate, work_procrastinate, "SELECT count(*) FROM procrastinate_jobs WHERE status <> 'succeeded'"
    ),
}

_EVENTS = text("""
    INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload, dedupe_key, occurred_at)
    SELECT 'thing', CAST(number % CAST(:aggregates AS bigint) AS text), 'Happened',
        jsonb_build_object('number', number), 'Happened:' || number, now()
    FROM generate_series(0, CAST(:jobs AS bigint) - 1) AS number
""")


def _dsn(url: str) -> str:
    # With a port before it, asyncpg takes the host of a socket's folder for an empty one.
    there = make_url(url)
    query = {**there.query, "port": str(there.port)}
    return URL.create("postgresql", there.username, database=there.database, query=query).render_as_string()


def main() -> None:
    """Work off what is there; prints the seconds that it took, start of the process aside."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=CONTENDERS)
    parser.add_argument("--url", required=True)
    parser.add_argument("--log", required=True)
    arguments = parser.parse_args()
    log = os.open(arguments.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    began = time.perf_counter()
    CONTENDERS[arguments.name].work(arguments.url, log)
    sys.stdout.write(f"{time.perf_counter() - began}\n")


if __name__ == "__main__":
    main()
