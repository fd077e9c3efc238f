"""How fast a month is settled, against one bare INSERT … SELECT and against a loop over organizations.

First into an empty ledger, then into one that holds the months before, beside the bare statement on the same table and
on one whose key begins with the organization; then again with nothing late, and with a little late.

    python -m benchmarks.settlement --help

Ends with exit code 1 when a bound is broken. Bounds on time need scale: they are judged from a million organizations
on and only printed below. That all variants leave the same ledger, and the bound on memory, are judged at any size.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from shutil import disk_usage
from statistics import median

from rich.console import Console
from rich.table import Table
from sqlalchemy import Connection, Engine, text

from benchmarks.server import autocommit, connect, own_server
from benchmarks.settlement_data import (
    BEGUN,
    MONTH,
    NOW,
    Size,
    add_late_movements,
    add_ledger_history,
    fingerprint,
    forget_everything,
    index_ledger,
    load,
)
from benchmarks.settlement_rivals import RUN_ID, SHAPES, get_or_create, one_statement
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.local.postgres import DEFAULT_PARAMETERS, EmbeddedServer
from ticketflow_orch.settlement import SettlementOptions, settle_month

JUDGED_FROM = 1_000_000
# As shipped, but for autovacuum, which would take a share of the processors at moments of its own.
PARAMETERS = {**DEFAULT_PARAMETERS, "autovacuum": "off"}

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Settled:
    """What a process that settled a month says of itself: wall time in seconds, and its peak memory in bytes."""

    seconds: float
    peak_memory: int


LATE = 1_000
WITH_HISTORY = "with history"
OLD_KEY = "organization first"


@dataclass(slots=True)
class Figures:
    """What was measured: seconds by what was done and for how many organizations, and what it left behind.

    `log`: bytes of write-ahead log by what was done.
    """

    seconds: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    log: dict[str, list[int]] = field(default_factory=dict)
    peak_memory: dict[int, int] = field(default_factory=dict)
    ledgers: dict[str, str] = field(default_factory=dict)

    def add(self, what: str, organizations: int, seconds: float) -> None:
        """Keep the time of one more round."""
        self.seconds.setdefault((what, organizations), []).append(seconds)

    def add_memory(self, organizations: int, peak: int) -> None:
        """Keep the largest peak."""
        self.peak_memory[organizations] = max(peak, self.peak_memory.get(organizations, 0))

    def log_of(self, what: str) -> float:
        """The median over the rounds, in bytes."""
        return median(self.log[what])

    def time(self, what: str, organizations: int) -> float:
        """The median over the rounds."""
        return median(self.seconds[what, organizations])


@dataclass(frozen=True, slots=True)
class Bound:
    """A promise: `value` is not above `limit`, or not below it where `at_least`. Only printed unless `judged`."""

    promise: str
    value: float
    limit: float
    judged: bool
    at_least: bool = False

    @property
    def holds(self) -> bool:
        """Whether the promise is kept."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def main() -> int:
    """Load, measure, print; 1 when a bound is broken."""
    arguments = _arguments()
    size = Size(arguments.organizations, arguments.movements, arguments.history, arguments.months)
    sizes = [size.scaled(max(1, size.organizations // 100)), size.scaled(max(1, size.organizations // 10)), size]
    console = Console(highlight=False, width=120)
    started = time.monotonic()

    def say(what: str) -> None:
        console.print(f"{time.monotonic() - started:6.0f} s  {what}", markup=False)

    figures = Figures()
    _require_room(arguments.keep, size)
    with own_server(PARAMETERS, arguments.keep) as server:
        for one in sizes:
            load(server, one, say)
        _describe(server, size, say)
        say("once unmeasured, so that nobody in particular pays for cold caches")
        with _emptied(server, size) as engine:
            one_statement(engine, next(iter(SHAPES)))
        for number in range(arguments.rounds):
            say(f"round {number + 1} of {arguments.rounds}, the ledger empty")
            _one_round(server, sizes, figures, say)
        sample = min(arguments.sample, size.organizations)
        say(f"the loop, over {sample:,} organizations")
        with _emptied(server, size) as engine:
            figures.add("loop", size.organizations, get_or_create(engine, sample) * size.organizations)
        with _emptied(server, size, begun=False) as engine, autocommit(engine) as connection:
            add_ledger_history(connection, size, say)
        for number in range(arguments.rounds):
            say(f"round {number + 1} of {arguments.rounds}, {size.months} months in the ledger")
            _one_round_with_history(server, size, figures, say)
    bounds = _bounds(figures, sizes)
    _print(console, figures, sizes, bounds)
    return int(any(bound.judged and not bound.holds for bound in bounds))


def _one_round(server: EmbeddedServer, sizes: list[Size], figures: Figures, say: Say) -> None:
    size = sizes[-1]
    for shape in _shapes_worth_a_round(figures, size):
        with _emptied(server, size) as engine, _logged(engine, figures, shape):
            figures.add(shape, size.organizations, one_statement(engine, shape))
            figures.ledgers[shape] = fingerprint(engine)
        say(f"  {shape}: {figures.seconds[shape, size.organizations][-1]:.2f} s")
    for workers in (1, 2):
        name = _workers(workers)
        with _emptied(server, size) as engine:
            with _logged(engine, figures, name):
                first = _settle_in_a_process(server, size, workers)
            _vacuum(engine)
            again = _settle_in_a_process(server, size, workers)
            figures.ledgers[name] = fingerprint(engine)
        figures.add(name, size.organizations, first.seconds)
        figures.add(f"{name}, again", size.organizations, again.seconds)
        say(f"  {name}: {first.seconds:.2f} s, again: {again.seconds:.2f} s")
        figures.add_memory(size.organizations, first.peak_memory)
    for smaller in sizes[:-1]:
        with _emptied(server, smaller):
            settled = _settle_in_a_process(server, smaller, workers=1)
        figures.add("1 worker", smaller.organizations, settled.seconds)
        figures.add_memory(smaller.organizations, settled.peak_memory)
        say(f"  1 worker, {smaller.organizations:,} organizations: {settled.seconds:.2f} s")


def _one_round_with_history(server: EmbeddedServer, size: Size, figures: Figures, say: Say) -> None:
    shape = min(SHAPES, key=lambda shape: figures.time(shape, size.organizations))
    bare = f"{shape}, {WITH_HISTORY}"
    with _month_emptied(server, size) as engine, _logged(engine, figures, bare):
        figures.add(bare, size.organizations, one_statement(engine, shape))
    say(f"  {bare}: {figures.seconds[bare, size.organizations][-1]:.2f} s")
    for workers in (1, 2):
        name = f"{_workers(workers)}, {WITH_HISTORY}"
        with _month_emptied(server, size) as engine:
            with _logged(engine, figures, name):
                first = _settle_in_a_process(server, size, workers)
            _vacuum(engine)
            again = _settle_in_a_process(server, size, workers)
            figures.ledgers[name] = fingerprint(engine)
            with autocommit(engine) as connection:
                add_late_movements(connection, size, LATE)
            late = _settle_in_a_process(server, size, workers)
            _require_posted_late(engine, size)
        figures.add(name, size.organizations, first.seconds)
        figures.add(f"{name}, again", size.organizations, again.seconds)
        figures.add(f"{name}, {LATE:,} late", size.organizations, late.seconds)
        figures.add_memory(size.organizations, first.peak_memory)
        say(f"  {name}: {first.seconds:.2f} s, again: {again.seconds:.2f} s, {LATE:,} late: {late.seconds:.2f} s")
    old = f"{bare}, {OLD_KEY}"
    with _month_emptied(server, size) as engine, autocommit(engine) as connection:
        index_ledger(connection, ("organization_id", "month"))
        connection.exec_driver_sql("CHECKPOINT")
        with _logged(engine, figures, old):
            figures.add(old, size.organizations, one_statement(engine, shape))
        say(f"  {old}: {figures.seconds[old, size.organizations][-1]:.2f} s")
        _forget_month(connection)
        index_ledger(connection, ("month", "organization_id"))


def _vacuum(engine: Engine) -> None:
    """What autovacuum has done to the ledger long before a month is settled again."""
    with autocommit(engine) as connection:
        connection.exec_driver_sql("VACUUM (ANALYZE) ledger_entry")


def _workers(number: int) -> str:
    return "1 worker" if number == 1 else f"{number} workers"


def _shapes_worth_a_round(figures: Figures, size: Size) -> list[str]:
    """Both at first, then the faster one."""
    if not figures.seconds:
        return list(SHAPES)
    return [min(SHAPES, key=lambda shape: figures.time(shape, size.organizations))]


def _settle_in_a_process(server: EmbeddedServer, size: Size, workers: int) -> Settled:
    url = server.url(size.database).render_as_string()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_settle, url, workers).result()


def _settle(url: str, workers: int) -> Settled:
    engine = connect_engine(url, "benchmark", connections=workers + 2)
    started = time.monotonic()
    settle_month(
        engine, MONTH, now=NOW, first_month=MONTH, run_id=RUN_ID, settled_by="benchmark",
        options=SettlementOptions(workers=workers),
    )  # fmt: skip
    seconds = time.monotonic() - started
    engine.dispose()
    return Settled(seconds, _peak_memory())


def _peak_memory() -> int:
    # Not getrusage: what it says of a child begins with what its parent held when it started it.
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status does not say what memory the process has used")


def _require_room(keep: Path | None, size: Size) -> None:
    free, needed = disk_usage(keep.parent if keep else tempfile.gettempdir()).free, size.bytes_on_disk
    if free < needed and not (keep and keep.exists()):
        sys.exit(f"{needed / 1e9:.0f} GB of disk are needed and {free / 1e9:.0f} GB are free; use fewer --months.")


@contextmanager
def _emptied(server: EmbeddedServer, size: Size, *, begun: bool = True) -> Iterator[Engine]:
    """The database with nothing settled, the month `begun` or not, and nothing left to write to disk."""
    with _prepared(server, size, lambda connection: forget_everything(connection, begun=begun)) as engine:
        yield engine


@contextmanager
def _month_emptied(server: EmbeddedServer, size: Size) -> Iterator[Engine]:
    """The database with the months before settled and closed, this one begun, and nothing left to write to disk."""

    def prepare(connection: Connection) -> None:
        _forget_month(connection)
        connection.execute(BEGUN, {"month": MONTH.first_day})

    with _prepared(server, size, prepare) as engine:
        yield engine


@contextmanager
def _prepared(server: EmbeddedServer, size: Size, prepare: Callable[[Connection], None]) -> Iterator[Engine]:
    engine = connect(server, size.database)
    with autocommit(engine) as connection:
        prepare(connection)
        connection.exec_driver_sql("CHECKPOINT")
    os.sync()
    try:
        yield engine
    finally:
        engine.dispose()


def _forget_month(connection: Connection) -> None:
    """Take back what was settled of `MONTH`, and what came late; the space that it took is given back too."""
    connection.exec_driver_sql("SET session_replication_role = replica")
    for table in ("settlement_chunk", "settlement_pass", "settlement_total", "settlement_period", "ledger_entry"):
        connection.execute(text(f"DELETE FROM {table} WHERE month = :month"), {"month": MONTH.first_day})
    connection.exec_driver_sql("DELETE FROM money_movement WHERE external_ref LIKE 'late-%%'")
    connection.exec_driver_sql("RESET session_replication_role")
    connection.exec_driver_sql("VACUUM (ANALYZE) ledger_entry")
    connection.exec_driver_sql("VACUUM settlement_period, settlement_pass, settlement_chunk, money_movement")


@contextmanager
def _logged(engine: Engine, figures: Figures, what: str) -> Iterator[None]:
    """Keep how many bytes of write-ahead log the block wrote."""
    with autocommit(engine) as connection:
        before = connection.exec_driver_sql("SELECT pg_current_wal_insert_lsn()").scalar_one()
    yield
    with autocommit(engine) as connection:
        written = text("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), CAST(:before AS pg_lsn))")
        figures.log.setdefault(what, []).append(int(connection.execute(written, {"before": before}).scalar_one()))


def _require_posted_late(engine: Engine, size: Size) -> None:
    with engine.connect() as connection:
        posted = connection.execute(
            text("SELECT count(*) FROM ledger_entry WHERE month = :month AND sequence > 0"),
            {"month": MONTH.first_day},
        ).scalar_one()
    if posted != min(LATE, size.organizations):
        sys.exit(f"{posted} adjustments were posted for {LATE} late movements.")


def _describe(server: EmbeddedServer, size: Size, say: Say) -> None:
    engine = connect(server, size.database)
    with engine.connect() as connection:
        parameters = {
            name: connection.exec_driver_sql(f"SHOW {name}").scalar_one()
            for name in ("server_version", "fsync", "synchronous_commit", "shared_buffers", "work_mem")
        }
        disk = connection.execute(text("SELECT pg_size_pretty(pg_database_size(current_database()))")).scalar_one()
    engine.dispose()
    total = size.movements + size.history * size.months
    say(f"{size.organizations:,} organizations, {size.movements:,} movements of {MONTH} among {total:,}, {disk}")
    say(", ".join(f"{name} {value}" for name, value in parameters.items()))


def _bounds(figures: Figures, sizes: list[Size]) -> list[Bound]:
    few, many = sizes[0].organizations, sizes[-1].organizations
    at_scale = many >= JUDGED_FROM
    bare = min(figures.time(shape, many) for shape in SHAPES)
    one, two = figures.time("1 worker", many), figures.time("2 workers", many)
    growth = one / many / (figures.time("1 worker", few) / few)
    full = f", {WITH_HISTORY}"
    bare_full = min(
        figures.time(f"{shape}{full}", many) for shape in SHAPES if (f"{shape}{full}", many) in figures.seconds
    )
    one_full, two_full = figures.time(f"1 worker{full}", many), figures.time(f"2 workers{full}", many)
    return [
        Bound("2 workers / one bare statement", two / bare, 0.65, at_scale),
        Bound("1 worker / one bare statement", one / bare, 1.1, at_scale),
        Bound("2 workers / one bare statement, with history", two_full / bare_full, 0.65, at_scale),
        Bound("1 worker / one bare statement, with history", one_full / bare_full, 1.1, at_scale),
        Bound("with history / empty, 1 worker", one_full / one, 1.1, at_scale),
        Bound("with history / empty, 2 workers", two_full / two, 1.1, at_scale),
        Bound(
            "log with history / empty, 1 worker",
            figures.log_of(f"1 worker{full}") / figures.log_of("1 worker"),
            1.2,
            at_scale,
        ),
        Bound("loop / 1 worker", figures.time("loop", many) / one, 60, at_scale, at_least=True),
        *(
            Bound(
                f"{what} / first, {name}", figures.time(f"{name}, {what}", many) / figures.time(name, many), 0.1, judged
            )
            for name in ("1 worker", "2 workers", f"1 worker{full}", f"2 workers{full}")
            for what, judged in (("again", at_scale), *([(f"{LATE:,} late", False)] if full in name else []))
        ),
        Bound(f"time per organization, {many:,} / {few:,}", growth, 1.25, at_scale),
        Bound(
            f"peak memory, {many:,} / {few:,}", figures.peak_memory[many] / figures.peak_memory[few], 1.1, judged=True
        ),
        Bound("different ledgers", len(set(figures.ledgers.values())), 1, judged=True),
    ]


def _print(console: Console, figures: Figures, sizes: list[Size], bounds: list[Bound]) -> None:
    many = sizes[-1].organizations
    bare = min(figures.time(shape, many) for shape in SHAPES)
    times = Table(
        "what", "organizations", "seconds", "per second", "/ bare", "log, MB", title="Medians over the rounds"
    )
    for (what, organizations), rounds in figures.seconds.items():
        seconds = median(rounds)
        ratio = f"{seconds / bare:.2f}" if organizations == many else ""
        log = f"{figures.log_of(what) / 1e6:,.0f}" if organizations == many and what in figures.log else ""
        times.add_row(what, f"{organizations:,}", f"{seconds:.2f}", f"{organizations / seconds:,.0f}", ratio, log)
    memory = ", ".join(
        f"{figures.peak_memory[size.organizations] / 2**20:.1f} MiB at {size.organizations:,}" for size in sizes
    )
    verdicts = Table("promise", "measured", "bound", "", title="Bounds")
    for bound in bounds:
        word = ("PASS" if bound.holds else "FAIL") if bound.judged else "not judged at this size"
        limit = f"{'at least' if bound.at_least else 'at most'} {bound.limit:g}"
        verdicts.add_row(bound.promise, f"{bound.value:.2f}", limit, word)
    console.print(times, f"Peak memory of the settling process: {memory}", verdicts, sep="\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.settlement",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--organizations", type=int, default=2_000_000)
    parser.add_argument("--movements", type=int, help="of the month that is settled (default: 3 for each organization)")
    parser.add_argument("--history", type=int, help="movements of each month before (default: 3 for 4 organizations)")
    parser.add_argument("--months", type=int, default=24, help="months of history (default: 24)")
    parser.add_argument("--rounds", type=int, default=3, help="how often all but the loop is measured (default: 3)")
    parser.add_argument("--sample", type=int, default=5_000, help="organizations in the loop (default: 5000)")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the database in FOLDER, or use the one there")
    arguments = parser.parse_args()
    arguments.movements = arguments.movements or arguments.organizations * 3
    arguments.history = arguments.history or arguments.organizations * 3 // 4
    return arguments


if __name__ == "__main__":
    sys.exit(main())
