"""What the relay delivers in a second, against two job queues of Python that keep their jobs in Postgres.

    python -m benchmarks.outbox --help

Jobs that do nothing but leave a line, on one server with fsync and synchronous_commit on; ours also over HTTP to a
receiver on this machine. Then each of them with an old snapshot open, and each killed after a third: what was left,
what was lost, what was done twice. Ends with exit code 1 when ours is not 1.5 × as fast as the faster of the others, or
leaves or loses an event.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table
from sqlalchemy import Engine, text

from benchmarks.outbox_contenders import BATCH, CONTENDERS, IN_FLIGHT, LEASE
from benchmarks.outbox_destinations import RECEIVER
from benchmarks.server import connect, own_server
from tests.support.sinks.http_receiver import ReceiverProcess
from ticketflow_orch.local.postgres import DEFAULT_PARAMETERS, EmbeddedServer

AT_LEAST = 1.5
PARAMETERS = {**DEFAULT_PARAMETERS, "max_wal_size": "4GB"}
# It takes its jobs one by one, so a tenth of them says what there is to say.
SLOW = {"procrastinate": 10}


@dataclass
class Measured:
    """Jobs a second, round by round, alone and beside an old snapshot; and what a kill left."""

    alone: list[float] = field(default_factory=list)
    beside_snapshot: float = 0
    left: int = 0
    lost: int = 0
    twice: int = 0


@dataclass(frozen=True)
class Bench:
    """A server and a folder for the lines that jobs leave."""

    server: EmbeddedServer
    folder: Path

    def run(self, name: str, jobs: int, *, old_snapshot: bool = False) -> float:
        """Jobs a second of one contender from nothing to nothing left."""
        with self._filled(name, jobs) as engine, _snapshot(engine) if old_snapshot else nullcontext():
            seconds = float(self._start(name).communicate()[0])
            assert self._left(engine, name) == 0, f"{name} left jobs undone"
            done = self._done()
            assert len(done) == jobs == done.total(), f"{name} did {len(done)} of {jobs} jobs, {done.total()} times"
        return jobs / seconds

    def kill(self, name: str, jobs: int) -> tuple[int, int, int]:
        """Kill a contender after a third of its jobs, start it again until no more is done: left, lost, done twice."""
        with self._filled(name, jobs) as engine:
            process = self._start(name)
            while self._done().total() < jobs // 3:
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
            process.communicate()
            before = -1
            while self._left(engine, name) and before < self._done().total():
                before = self._done().total()
                time.sleep(LEASE + 6)
                self._start(name).communicate()
            done, left = self._done(), self._left(engine, name)
        return left, jobs - left - len(done), sum(times > 1 for times in done.values())

    @contextmanager
    def _filled(self, name: str, jobs: int) -> Iterator[Engine]:
        cluster = connect(self.server, "postgres")
        with cluster.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("CREATE DATABASE measured")
            self._log.unlink(missing_ok=True)
            CONTENDERS[name].fill(self._url, jobs)
            engine = connect(self.server, "measured")
            with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as inside:
                inside.exec_driver_sql("VACUUM (ANALYZE)")
            connection.exec_driver_sql("CHECKPOINT")
            try:
                yield engine
            finally:
                engine.dispose()
                connection.exec_driver_sql("DROP DATABASE measured WITH (FORCE)")
        cluster.dispose()

    def _start(self, name: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "benchmarks.outbox_contenders", name, "--url", self._url]
        return subprocess.Popen([*command, "--log", str(self._log)], stdout=subprocess.PIPE, text=True)

    @property
    def _url(self) -> str:
        return self.server.url("measured").render_as_string(hide_password=False)

    @property
    def _log(self) -> Path:
        return self.folder / "done"

    def _done(self) -> Counter[str]:
        """How often each job was done."""
        return Counter(self._log.read_text().split()) if self._log.exists() else Counter()

    def _left(self, engine: Engine, name: str) -> int:
        with engine.connect() as connection:
            return int(connection.execute(text(CONTENDERS[name].left)).scalar_one())


def main() -> int:
    """Measure, print; 1 when a bound is broken."""
    arguments = _arguments()
    console = Console(highlight=False, width=120)
    jobs = {name: arguments.events // SLOW.get(name, 1) for name in CONTENDERS}
    measured = {name: Measured() for name in CONTENDERS}
    with _bench() as bench:
        for _ in range(arguments.rounds):
            for name, one in measured.items():
                one.alone.append(bench.run(name, jobs[name]))
        for name, one in measured.items():
            one.beside_snapshot = bench.run(name, jobs[name], old_snapshot=True)
            one.left, one.lost, one.twice = bench.kill(name, jobs[name])
    console.print(_table(measured, jobs))
    ratio = median(measured["ours"].alone) / max(median(measured[name].alone) for name in ("pgqueuer", "procrastinate"))
    console.print(f"ours against the faster of the others: {ratio:.2f} × (at least {AT_LEAST})", _SAME, sep="\n")
    ours = [measured["ours"], measured["ours over HTTP"]]
    return int(ratio < AT_LEAST or any(one.left or one.lost for one in ours))


_SAME = (
    f"Batches of {BATCH}, {IN_FLIGHT} deliveries in flight, one process each. Ours keeps the order of each aggregate "
    "and fences every end of an attempt; the others do neither. Done twice after a kill is what was done and not yet "
    "written down: receivers know it by its id."
)


def _table(measured: dict[str, Measured], jobs: dict[str, int]) -> Table:
    table = Table("who", "jobs", "jobs/s", "beside an old snapshot", "killed: left", "lost", "done twice")
    for name, one in measured.items():
        rate = median(one.alone)
        beside = f"{one.beside_snapshot:,.0f} ({one.beside_snapshot / rate:.0%})"
        counts = (f"{count:,}" for count in (one.left, one.lost, one.twice))
        table.add_row(name, f"{jobs[name]:,}", f"{rate:,.0f}", beside, *counts)
    return table


@contextmanager
def _snapshot(engine: Engine) -> Iterator[None]:
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        connection.exec_driver_sql("SELECT 1")
        yield


@contextmanager
def _bench() -> Iterator[Bench]:
    with own_server(PARAMETERS) as server, ReceiverProcess() as receiver, tempfile.TemporaryDirectory() as lines:
        os.environ[RECEIVER] = receiver.url
        yield Bench(server, Path(lines))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.outbox", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
