"""How fast one month is settled by several runs, each a process that the real daemon starts, beside one run alone.

    python -m benchmarks.shards --help

Prints the seconds of the month's pass, from its cutoff to its end, and of the whole run that leads it, with what
Dagster adds. Ends with exit code 1 where a run failed, a run that was to help did nothing, or ledgers differ.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from sqlalchemy import Engine, text

from benchmarks.server import autocommit
from benchmarks.settlement_data import MONTH, NOW, Size, fill, fingerprint, forget_everything
from tests.end_to_end.back_office import BackOffice, Run, opened, worker_of
from ticketflow_orch.jobs.intervals import SETTLEMENT_SHARD
from ticketflow_orch.local.postgres import EmbeddedServer

PATIENCE = 3600.0


@dataclass(frozen=True, slots=True)
class Variant:
    """How the month is settled: by `runs` of `workers` each, of which one that helps is killed or not."""

    name: str
    runs: int
    workers: int
    is_one_killed: bool = False


VARIANTS = (
    Variant("one run, 1 worker", 1, 1),
    Variant("one run, 2 workers", 1, 2),
    Variant("2 runs, 1 worker each", 2, 1),
    Variant("4 runs, 1 worker each", 4, 1),
    Variant("2 runs, 1 worker each, one killed", 2, 1, is_one_killed=True),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of the pass and of the whole run that led it; how many runs did chunks; the ledger in one value."""

    passed: float
    run: float
    hands: int
    ledger: str


def main() -> int:
    """Load, measure, print; 1 when something is not as it should be."""
    arguments = _arguments()
    size = Size(arguments.organizations, arguments.organizations * 3, 0, 0)
    console = Console(highlight=False, width=120)
    started = time.monotonic()

    def say(what: str) -> None:
        console.print(f"{time.monotonic() - started:6.0f} s  {what}", markup=False)

    home = Path(tempfile.mkdtemp(prefix="tf-", dir=arguments.folder))
    home.chmod(0o755)  # Postgres runs as another account when we are root
    measured: dict[Variant, Measured] = {}
    try:
        with opened(home, TICKETFLOW_FIRST_MONTH=str(MONTH), TICKETFLOW_FIXED_CLOCK=NOW.isoformat()) as office:
            office.leave_to_people(SENSOR)
            limited = office.ask(LIMIT_POOL, pool=SETTLEMENT_SHARD.pool, limit=max(one.runs for one in VARIANTS) - 1)
            assert limited["setConcurrencyLimit"], limited
            with autocommit(office.engine) as connection:
                fill(connection, size, say)
            for variant in VARIANTS:
                measured[variant] = _measure(office, variant, arguments)
                say(f"{variant.name}: {measured[variant].passed:.1f} s")
    finally:
        EmbeddedServer(home).remove()
        shutil.rmtree(home)
    _print(console, measured)
    return int(not _is_sound(measured))


def _measure(office: BackOffice, variant: Variant, arguments: argparse.Namespace) -> Measured:
    with autocommit(office.engine) as connection:
        forget_everything(connection, begun=False)
        connection.exec_driver_sql("CHECKPOINT")
    leader = office.materialize(
        str(MONTH), chunk_size=arguments.chunk_size, chunk_pause=arguments.chunk_pause, workers=variant.workers,
        shards=variant.runs,
    )  # fmt: skip
    if variant.is_one_killed:
        _kill_one(office, leader)
    run = office.wait_for(
        lambda: run if (run := office.run(leader)).ended is not None else None, f"run {leader}", PATIENCE
    )
    if run.status != "SUCCESS":
        sys.exit(f"{variant.name} failed: {office.failure(leader)}")
    office.wait_for(lambda: all(one.ended for one in _helpers(office)), "the runs that help", PATIENCE)
    with office.engine.connect() as connection:
        row = connection.execute(PASS, {"month": MONTH.first_day}).one()
    return Measured(row.seconds, run.ended - run.started, row.hands, fingerprint(office.engine))


def _kill_one(office: BackOffice, leader: str) -> None:
    """Kill the run that helps when it has done a chunk."""
    helper = office.wait_for(lambda: _unfinished(office), "the run that helps")
    process = office.wait_for(lambda: worker_of(office, helper), "its worker")
    office.wait_for(lambda: _did_any(office.engine, helper) or office.run(leader).ended, "its first chunk", PATIENCE)
    process.kill()


def _helpers(office: BackOffice) -> list[Run]:
    return office.runs(ticketflow_month=str(MONTH))


def _unfinished(office: BackOffice) -> str | None:
    return next((run.id for run in _helpers(office) if run.ended is None), None)


def _did_any(engine: Engine, run_id: str) -> bool:
    with engine.connect() as connection:
        query = text("SELECT EXISTS (SELECT FROM settlement_chunk WHERE run_id = :run)")
        return bool(connection.execute(query, {"run": run_id}).scalar_one())


def _is_sound(measured: dict[Variant, Measured]) -> bool:
    ledgers = {one.ledger for one in measured.values()}
    return len(ledgers) == 1 and all(one.hands >= variant.runs for variant, one in measured.items())


def _print(console: Console, measured: dict[Variant, Measured]) -> None:
    alone, two = (measured[variant].passed for variant in VARIANTS[:2])
    table = Table("what", "pass, s", "/ 1 worker", "/ 2 workers", "run, s", "runs at work", "ledger")
    for variant, one in measured.items():
        table.add_row(
            variant.name, f"{one.passed:.1f}", f"{one.passed / alone:.2f}", f"{one.passed / two:.2f}",
            f"{one.run:.1f}", str(one.hands), one.ledger,
        )  # fmt: skip
    console.print(table, "Sound." if _is_sound(measured) else "NOT SOUND: ledgers differ, or a run did nothing.")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.shards", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--organizations", type=int, default=2_000_000)
    parser.add_argument("--chunk-size", type=int, default=20_000)
    parser.add_argument("--chunk-pause", type=float, default=0.0, help="seconds; so that a small month lasts")
    parser.add_argument("--folder", type=Path, help="where the database is made (default: the temporary folder)")
    return parser.parse_args()


SENSOR = "settlement_shards"

LIMIT_POOL = "mutation ($pool: String!, $limit: Int!) { setConcurrencyLimit(concurrencyKey: $pool, limit: $limit) }"

PASS = text("""
    SELECT CAST(extract(epoch FROM finished_at - started_at) AS float8) AS seconds, (
        SELECT count(DISTINCT run_id) FROM settlement_chunk AS chunk
        WHERE chunk.month = settlement_pass.month AND chunk.pass = settlement_pass.pass) AS hands
    FROM settlement_pass WHERE month = :month AND pass = 1
""")


if __name__ == "__main__":
    sys.exit(main())
