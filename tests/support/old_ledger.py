"""A ledger as production once had it, without a key, and the code that worked on it then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sqlalchemy import Engine, text
from sqlalchemy.engine import URL

from tests.support.sessions import becomes
from tests.support.sql_statements import LEDGER_ROW, execute, insertion, objection
from ticketflow_orch.db.engine import SessionLimits, connect_engine
from ticketflow_orch.db.migrate import migrate
from ticketflow_orch.migrations.online import LOCK_TIMEOUT

OLD_ROW = {name: value for name, value in LEDGER_ROW.items() if name != "sequence"}
# 20,000 rows and more: an organization in seven is posted twice, one in thirty three times, one in a hundred four
# times; the surplus was posted *earlier*, so that the order of posting is not the order on disk.
FILL = """
    INSERT INTO ledger_entry (organization_id, month, currency, origin_month, captures, refunds, chargebacks, fees,
        commission, commission_tax, net, settlement_pass, posted_at)
    SELECT id, '2026-03-01', 'EUR', '2026-03-01', id % 97, -(id % 13), 0, 0, id % 7, copy,
        id % 97 - id % 13 - id % 7 - copy, 1, timestamptz '2026-04-02Z' - copy * interval '1 second'
    FROM generate_series(1, 17000) AS id
    CROSS JOIN LATERAL generate_series(1, CASE
        WHEN id % 100 = 0 THEN 4 WHEN id % 30 = 0 THEN 3 WHEN id % 7 = 0 THEN 2 ELSE 1 END) AS copy
"""


def old_ledger_in(url: URL) -> Engine:
    migrate(url, "0001")
    engine = connect_engine(url, "pytest")
    execute(engine, "INSERT INTO settlement_period (month) VALUES ('2026-03-01')")
    execute(engine, FILL)
    return engine


def scalar(engine: Engine, statement: str) -> Any:
    with engine.connect() as connection:
        return connection.execute(text(statement)).scalar()


def rows(engine: Engine, statement: str) -> set[tuple[Any, ...]]:
    with engine.connect() as connection:
        return {tuple(row) for row in connection.execute(text(statement))}


class Load:
    """A reader and a writer of rows like `row`, both with little patience, until the block ends."""

    FIRST = 1_000_000
    PATIENCE = LOCK_TIMEOUT + 2

    def __init__(self, url: URL, row: Mapping[str, str] = OLD_ROW) -> None:
        self._row = dict(row)
        limits = SessionLimits(statement_timeout=self.PATIENCE)
        self._engine = connect_engine(url, "old code", limits=limits, connections=2)
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(2)
        self.failures: list[str] = []
        self.slowest = 0.0
        self.written = self.read = 0

    def __enter__(self) -> Load:
        self._loops = [self._pool.submit(self._repeat, work) for work in (self._write, self._read)]
        self.goes_on()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown()
        self._engine.dispose()
        for loop in self._loops:
            loop.result()

    def goes_on(self) -> None:
        """Wait until both have got something done from now on."""
        written, read = self.written, self.read
        becomes(lambda: self.written > written and self.read > read)

    def _repeat(self, work: Callable[[], None]) -> None:
        while not self._stop.is_set():
            begun = time.monotonic()
            against = objection(work)
            self.slowest = max(self.slowest, time.monotonic() - begun)
            if against is not None:
                self.failures.append(against)

    def _write(self) -> None:
        execute(
            self._engine, insertion("ledger_entry", self._row | {"organization_id": str(self.FIRST + self.written)})
        )
        self.written += 1

    def _read(self) -> None:
        scalar(self._engine, "SELECT sum(net) FROM ledger_entry")
        self.read += 1
