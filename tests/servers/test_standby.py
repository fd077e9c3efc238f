"""A primary dies under load and a standby takes its place: nobody is paid twice, and work goes on by itself."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from tests.chaos.books import fill, read_books
from tests.conftest import DEBIAN_15, SERVERS
from tests.servers.effects import DELIVERY, IN_FLIGHT, START, Work, remind
from tests.support.payable import close_with, request, rows
from tests.support.payments import books, differences
from tests.support.provider import Provider
from tests.support.rows import add_event, add_movement, add_reservation, instant
from tests.support.sessions import becomes
from tests.support.settled import settle
from tests.support.sinks.smtp_server import SmtpServer, message_ids
from tests.support.sql_statements import execute
from tests.support.standbys import cut_off, standby, until
from ticketflow_orch.db.engine import connect_engine, parse_url
from ticketflow_orch.db.migrate import migrate
from ticketflow_orch.installation.agreed_routes import adopt_routes
from ticketflow_orch.installation.deciding import adopt
from ticketflow_orch.local.postgres import DEFAULT_PARAMETERS, EmbeddedServer
from ticketflow_orch.months import Month
from ticketflow_orch.settings import Settings
from ticketflow_orch.settlement.invariants import order_faults

pytestmark = pytest.mark.skipif(
    "postgres15" not in SERVERS, reason="there is no Postgres 15 here, whose pg_basebackup makes the standby"
)
JANUARY, FEBRUARY = Month(2026, 1), Month(2026, 2)
PAID = 30
BUYERS = 30


@dataclass
class Pair:
    """A primary, the standby that follows it, and an engine on whichever takes writes."""

    primary: EmbeddedServer
    second: EmbeddedServer
    engine: Engine
    following: Engine

    def is_level(self) -> None:
        """Wait until the standby has what the primary has."""
        [(written,)] = rows(self.engine, "SELECT CAST(pg_current_wal_lsn() AS text)")
        until(self.following, f"SELECT pg_last_wal_replay_lsn() >= CAST('{written}' AS pg_lsn)")

    def fail_over(self) -> float:
        """Kill the primary, promote the standby; returns after how many seconds the URL takes writes again."""
        pid = self.primary.pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        rows(self.following, "SELECT pg_promote()")
        assert becomes(self._writes)
        return time.monotonic() - began

    def _writes(self) -> bool:
        with suppress(DBAPIError):
            execute(self.engine, "CREATE TABLE IF NOT EXISTS proof (id int)")
            return True
        return False


@contextmanager
def pair(scratch: Path, name: str, **parameters: str) -> Iterator[Pair]:
    """A migrated primary with a level standby, which are gone when the block ends."""
    folders = scratch / f"{name}-a", scratch / f"{name}-b"
    given = {**DEFAULT_PARAMETERS, "shared_buffers": "64MB", "fsync": "off", "max_wal_size": "256MB", **parameters}
    primary = EmbeddedServer(folders[0], DEBIAN_15, given)
    primary.start()
    try:
        migrate(primary.url())
        with standby(primary, folders[1]) as second:
            hosts = f"{primary.socket_directory},{second.socket_directory}"
            both = parse_url(f"postgresql://postgres@/postgres?host={hosts}")
            engine = connect_engine(both, "load", connections=40, patience=60)
            following = connect_engine(second.url(), "standby", connections=2)
            decided = Settings(payouts_from="2014-10")
            adopt(engine, decided, "the suite")
            adopt_routes(engine, decided, "the suite")
            try:
                yield Pair(primary, second, engine, following)
            finally:
                engine.dispose()
                following.dispose()
    finally:
        primary.remove()
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def add_season(engine: Engine) -> int:
    """Sales of March in 240 organizations, two months that owe, and ticket holders to remind; who goes on selling."""
    fill(engine)
    for month in (JANUARY, FEBRUARY):
        close_with(engine, [(number, "EUR", 1_000 + number) for number in range(1, PAID + 1)], month)
    evening = add_event(engine, 1, external_ref="evening", starts_at=START, ends_at=START + timedelta(hours=2))
    for number in range(BUYERS):
        bought = {"status": "CONFIRMED", "confirmed_at": instant("2026-04-01T10:00")}
        add_reservation(
            engine, evening, public_ref=f"buyer-{number}", buyer_email=f"buyer-{number}@example.com", **bought
        )
    return 2


def owed() -> list[tuple[str, str, int]]:
    return sorted((f"scene-{number}", "EUR", 1_000 + number) for number in range(1, PAID + 1) for _ in range(2))


@pytest.fixture
def expected(engine: Engine) -> object:
    """The ledger of March as a server that never fails has it."""
    add_season(engine)
    settle(engine)
    return read_books(engine).ledger


@pytest.mark.parametrize("mode", ["asynchronous", "synchronous"])
def test_nobody_is_paid_twice_and_work_goes_on_where_a_primary_dies_under_load(
    scratch: Path, tmp_path: Path, start_provider: Callable[..., Provider], expected: object, mode: str
) -> None:
    provider = start_provider()
    loses = mode == "asynchronous"
    with pair(scratch, mode[:4]) as both, SmtpServer() as mails, ThreadPoolExecutor(3) as threads:
        engine = both.engine
        path = tmp_path / "delivery.toml"
        path.write_text(DELIVERY.format(url=provider.url, port=mails.port), "utf-8")
        seller = add_season(engine)
        request(engine, JANUARY)
        both.is_level()
        if not loses:
            make_synchronous(both)
        work = Work(engine, path)
        settling = threads.submit(settle, engine, chunk_size=4, chunk_pause=0.05)
        threads.submit(work.sell, seller)
        threads.submit(work.relay)
        try:
            assert becomes(lambda: count(engine, "settlement_chunk WHERE state = 'DONE'") > 5 and provider.paid != [])
            if loses:
                both.is_level()
                cut_off(both.following)
            before = len(provider.paid), len(mails.stored), len(work.recorded)
            request(engine, FEBRUARY)
            remind(engine)
            assert becomes(lambda: len(provider.paid) >= before[0] + 5 and len(mails.stored) >= before[1] + 3)
            assert becomes(lambda: len(work.recorded) > before[2] + 20)
            acknowledged = list(work.recorded)
            confirmed = count(engine, "payout WHERE state = 'CONFIRMED'")
            away = both.fail_over()
            # All three go on by themselves.
            assert settling.result(timeout=60).settlement is not None
            kept = {number for (number,) in rows(engine, "SELECT id FROM money_movement")}
            lost = [number for number in acknowledged if number not in kept]
            assert becomes(lambda: len(work.recorded) > len(acknowledged) + 20)
        finally:
            work.over.set()
        assert bool(lost) is loses
        assert (count(engine, "payout WHERE state = 'CONFIRMED'") >= confirmed) or loses
        repeated_once(work, provider, mails, loses=loses)
        in_order(engine, work)
        settle(engine)
        assert read_books(engine).ledger == expected
        assert settle(engine).changed_nothing
        assert away < 15


def repeated_once(work: Work, provider: Provider, mails: SmtpServer, *, loses: bool) -> None:
    """What is done again after a promotion is the same thing to everybody, by the books of those who got it."""
    engine = work.engine
    if loses:
        named = differences(engine, books(provider))
        assert named
        assert all(one.what.startswith("confirmed there and ") for one in named)
    # What is repeated asks for the same under the same names.
    for month in (JANUARY, FEBRUARY):
        request(engine, month)
    remind(engine)
    assert becomes(lambda: delivered(work))
    assert provider.paid == owed()
    assert differences(engine, books(provider), FEBRUARY) == []
    assert rows(engine, "SELECT state, count(*) FROM payout GROUP BY 1") == [("CONFIRMED", 2 * PAID)]
    known = {(entry.reference, entry.provider_ref) for entry in provider.entries}
    assert {(str(one), ref) for one, ref in rows(engine, "SELECT public_id, provider_ref FROM payout")} == known
    # A mail whose end was lost goes again, under the id that it had.
    assert len(set(message_ids(mails))) == BUYERS
    again = len(mails.stored) - BUYERS
    assert (again > 0) if loses else (again <= IN_FLIGHT)


def make_synchronous(both: Pair) -> None:
    """Let no commit return before the standby has it."""
    for statement in ("ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()"):
        with both.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(statement)
    until(both.engine, "SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'")
    # It must not wait for one of its own when it is promoted.
    with both.following.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("ALTER SYSTEM SET synchronous_standby_names = ''")


def count(engine: Engine, table: str) -> int:
    [(found,)] = rows(engine, f"SELECT count(*) FROM {table}")
    return int(found)


def delivered(work: Work) -> bool:
    work.deliver(2)
    return count(work.engine, "outbox_event WHERE state NOT IN ('DELIVERED', 'SUPPRESSED')") == 0


def in_order(engine: Engine, work: Work) -> None:
    """No sale has an id that a pass has read past, and none has one that is given again."""
    with engine.connect() as connection:
        assert order_faults(connection) == ()
    [(cutoff,)] = rows(engine, "SELECT max(cutoff) FROM settlement_pass WHERE month = '2026-03-01'")
    late = rows(
        engine,
        "SELECT count(*) FROM money_movement JOIN settlement_pass ON cutoff >= money_movement.id"
        " WHERE month = '2026-03-01' AND recorded_at > started_at",
    )
    assert late == [(0,)], cutoff
    largest = work.recorded[-1]
    assert add_movement(engine, 2, 100, "2026-06-11T10:00") > largest
