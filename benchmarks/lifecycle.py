"""What closing, expiring and reminding cost, against the bare statements with the same writes and a loop over rows.

    python -m benchmarks.lifecycle --help

Then what a minute costs in which nothing is due, and a run with little due against a job that does nothing. Ends with
exit code 1 when a bound is broken; bounds on time are judged from a million reservations on.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table
from sqlalchemy import Engine, text

from benchmarks.lifecycle_rivals import LEAD, NOW, bare, loop
from benchmarks.server import connect, own_server
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.db.migrate import migrate
from ticketflow_orch.installation.deciding import adopt
from ticketflow_orch.local.postgres import DEFAULT_PARAMETERS, EmbeddedServer
from ticketflow_orch.settings import Settings
from ticketflow_orch.ticketing.events import close_events
from ticketflow_orch.ticketing.lifecycle import LifecycleRules
from ticketflow_orch.ticketing.reminders import ReminderRules, send_reminders
from ticketflow_orch.ticketing.reservations import expire_reservations, reservations_are_due

JUDGED_FROM = 1_000_000
# Autovacuum would take a share of the two processors at times of its own.
PARAMETERS = {**DEFAULT_PARAMETERS, "autovacuum": "off", "max_wal_size": "8GB"}
NAMES = ("close", "expire", "remind")
IDLE_TICKS = 200
RUNS = 5


@dataclass(frozen=True, slots=True)
class Measured:
    """One operation in a process of its own: wall time in seconds, that process's peak memory in bytes."""

    seconds: float
    peak_memory: int


def main() -> int:
    """Load, measure, print; 1 when a bound is broken."""
    arguments = _arguments()
    console = Console(highlight=False, width=120)
    table = Table("what", "reservations", "ours", "bare", "ours / bare", "loop (sampled)", "loop / ours", "peak MiB")
    holds = True
    with own_server(PARAMETERS) as server:
        few = max(1, arguments.reservations // 10)
        for name in NAMES:
            small = _in_a_process(server, _template(server, name, few, max(1, arguments.events // 10)), name)
            template = _template(server, name, arguments.reservations, arguments.events)
            ours, rival = [], []
            for _ in range(arguments.rounds):
                rival.append(_timed(server, template, lambda engine, name=name: bare(engine, name)))
                ours.append(_in_a_process(server, template, name))
            done: list[int] = []

            def sample(engine: Engine, name: str = name, done: list[int] = done) -> None:
                done.append(loop(engine, name, arguments.sample))

            sampled = _timed(server, template, sample)
            mine, its = median(one.seconds for one in ours), median(rival)
            looped = sampled / done[0] * arguments.reservations
            peak = max(one.peak_memory for one in ours)
            table.add_row(
                name, f"{arguments.reservations:,}", _spread([one.seconds for one in ours], " s"), _spread(rival, " s"),
                _spread([one.seconds / it for one, it in zip(ours, rival, strict=True)], at=mine / its),
                f"{looped:.0f} s", f"{looped / mine:.0f}", f"{small.peak_memory / 2**20:.0f} → {peak / 2**20:.0f}",
            )  # fmt: skip
            holds &= peak / small.peak_memory <= 1.1
            holds &= mine / its <= 1.1 or arguments.reservations < JUDGED_FROM
        console.print(
            table, "By median at most 1.1 × the bare statements; memory at ten times the rows at most 1.1 ×.", sep="\n"
        )
        idle = _idle_tick(server, arguments.crowd)
        console.print(f"A minute with nothing due among {arguments.crowd:,} reservations: {idle * 1000:.2f} ms")
        if not arguments.without_runs:
            ratio = _run_against_nothing(server, console)
            holds &= ratio <= 1.15
    return int(not holds)


def _spread(values: Sequence[float], unit: str = "", at: float | None = None) -> str:
    """The median of the rounds, or what was made of medians, and the least and most of them."""
    return f"{median(values) if at is None else at:.2f}{unit} ({min(values):.2f}–{max(values):.2f})"


def _template(server: EmbeddedServer, name: str, reservations: int, events: int) -> str:
    """A database in which there is as much for the operation `name` to do."""
    database = f"{name}_{reservations}"
    engine = connect(server, "postgres")
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {database}")
    engine.dispose()
    migrate(server.url(database))
    engine = connect(server, database)
    adopt(engine, Settings(), "the benchmark")
    with engine.begin() as connection:
        # Without the triggers, which look at each row: what is measured is not how they came.
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        values = {"now": NOW, "events": events, "reservations": reservations, "over": name == "close"}
        status = "CONFIRMED" if name == "remind" else "ACTIVE"
        for statement in (_ORGANIZATION, _EVENTS, _RESERVATIONS, _KIND):
            used = {key: value for key, value in values.items() if f":{key}" in statement}
            connection.execute(text(statement), used | ({"status": status} if ":status" in statement else {}))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("VACUUM (ANALYZE)")
    engine.dispose()
    return database


@contextmanager
def _copy(server: EmbeddedServer, template: str) -> Iterator[Engine]:
    """A fresh copy of a database, with nothing left to write to disk."""
    cluster = connect(server, "postgres")
    with cluster.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(f"CREATE DATABASE measured TEMPLATE {template} STRATEGY file_copy")
        connection.exec_driver_sql("CHECKPOINT")
        engine = connect(server, "measured")
        try:
            yield engine
        finally:
            engine.dispose()
            connection.exec_driver_sql("DROP DATABASE measured WITH (FORCE)")
    cluster.dispose()


def _timed(server: EmbeddedServer, template: str, work: Callable[[Engine], object]) -> float:
    with _copy(server, template) as engine:
        with engine.connect():
            started = time.monotonic()
        work(engine)
        return time.monotonic() - started


def _in_a_process(server: EmbeddedServer, template: str, name: str) -> Measured:
    with _copy(server, template), ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_operate, server.url("measured").render_as_string(), name).result()


def _operate(url: str, name: str) -> Measured:
    engine = connect_engine(url, "benchmark")
    started = time.monotonic()
    rules = LifecycleRules(now=NOW, run_id="benchmark")
    if name == "close":
        close_events(engine, rules)
    elif name == "expire":
        expire_reservations(engine, rules)
    else:
        send_reminders(engine, ReminderRules(now=NOW, kinds={"24h": LEAD}))
    seconds = time.monotonic() - started
    engine.dispose()
    return Measured(seconds, _peak_memory())


def _peak_memory() -> int:
    # Not getrusage: what it says of a child begins with what its parent held when it started it.
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status does not say what memory the process has used")


def _idle_tick(server: EmbeddedServer, crowd: int) -> float:
    """Seconds that the minute's question takes when `crowd` reservations lie there and none is due; the median."""
    database = _template(server, "crowd", crowd, max(1, crowd // 1000))
    rules = LifecycleRules(now=NOW.replace(year=NOW.year - 1), run_id="")
    engine = connect(server, database)
    times = []
    with engine.connect() as connection:
        # Most of a table is history: it is what makes the planner think of reading all of it.
        connection.exec_driver_sql("SET session_replication_role = replica")
        connection.execute(text(_HISTORY))
        connection.commit()
        connection.exec_driver_sql("ANALYZE reservation")
        for _ in range(IDLE_TICKS):
            started = time.perf_counter()
            reservations_are_due(connection, rules)
            times.append(time.perf_counter() - started)
    engine.dispose()
    return median(times)


def _run_against_nothing(server: EmbeddedServer, console: Console) -> float:
    """CPU seconds of a run with little due, over those of a job that does nothing in a location of its own."""
    with tempfile.TemporaryDirectory() as folder, _copy(server, f"crowd_{_smallest(server)}"):
        (Path(folder) / "nothing.py").write_text(_NOTHING)
        environment = os.environ | {
            "DAGSTER_HOME": folder,
            "TICKETFLOW_DATABASE_URL": server.url("measured").render_as_string(),
            "TICKETFLOW_FIXED_CLOCK": NOW.isoformat(),
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).resolve().parents[1]), folder]),
        }
        ours, nothing = [], []
        for _ in range(RUNS):
            nothing.append(_cpu(environment, "nothing", "nothing_job"))
            ours.append(_cpu(environment, "ticketflow_orch.definitions", "expire_reservations_job"))
    console.print(
        f"A run with little due: {median(ours):.2f} CPU-s; a job that does nothing: {median(nothing):.2f} CPU-s; "
        f"ratio {median(ours) / median(nothing):.2f} (at most 1.15)"
    )
    return median(ours) / median(nothing)


def _smallest(server: EmbeddedServer) -> int:
    engine = connect(server, "postgres")
    with engine.connect() as connection:
        names = connection.execute(text("SELECT datname FROM pg_database WHERE datname LIKE 'crowd%'")).scalars()
        return min(int(name.removeprefix("crowd_")) for name in names)


def _cpu(environment: dict[str, str], module: str, job: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "dagster", "job", "execute", "--module-name", module, "--job", job]
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=300)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.lifecycle", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--reservations", type=int, default=1_000_000)
    parser.add_argument("--crowd", type=int, default=5_000_000, help="reservations that an idle minute looks past")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sample", type=int, default=2_000, help="rows that the loop does")
    parser.add_argument("--without-runs", action="store_true", help="leave out what starts Dagster")
    return parser.parse_args()


_ORGANIZATION = """
    INSERT INTO organization
        (id, external_ref, name, timezone, currency, commission_rate_bps, commission_tax_bps, joined_on)
    VALUES (1, 'hall', 'Hall', 'Europe/Madrid', 'EUR', 0, 0, '2020-01-01')
"""

_EVENTS = """
    INSERT INTO event (id, external_ref, organization_id, title, status, starts_at, ends_at, timezone)
    SELECT number, 'event-' || number, 1, 'x', 'OPEN',
        CAST(:now AS timestamptz) + CASE WHEN CAST(:over AS boolean) THEN -1 ELSE 1 END
            * (interval '10 hours' + number * interval '0.1 second'),
        CAST(:now AS timestamptz) + CASE WHEN CAST(:over AS boolean) THEN -1 ELSE 1 END
            * (interval '10 hours' + number * interval '0.1 second') + interval '2 hours', 'Europe/Madrid'
    FROM generate_series(1, CAST(:events AS bigint)) AS number
"""

_RESERVATIONS = """
    INSERT INTO reservation (public_ref, event_id, buyer_email, quantity, status, created_at, expires_at, confirmed_at)
    SELECT 'reservation-' || number, number % CAST(:events AS bigint) + 1, 'buyer@example.com', 1,
        CAST(:status AS text), CAST(:now AS timestamptz) - interval '9 days',
        CAST(:now AS timestamptz) - interval '1 day' + number * interval '0.01 second',
        CASE WHEN CAST(:status AS text) = 'CONFIRMED' THEN CAST(:now AS timestamptz) - interval '9 days' END
    FROM generate_series(1, CAST(:reservations AS bigint)) AS number
"""

_KIND = "INSERT INTO reminder_kind (kind, lead, enabled_at) VALUES ('24h', interval '24 hours', '2026-01-01Z')"

_HISTORY = """
    UPDATE reservation SET status = 'EXPIRED', expired_at = created_at, expires_at = created_at - interval '2 years'
    WHERE id % 4 <> 0
"""

_NOTHING = """
import dagster as dg

@dg.op
def nothing() -> None: ...

@dg.job
def nothing_job() -> None:
    nothing()

defs = dg.Definitions(jobs=[nothing_job], executor=dg.in_process_executor)
"""


if __name__ == "__main__":
    sys.exit(main())
