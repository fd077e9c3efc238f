"""A connection whose other end has fallen silent ends by itself, whatever it waits for."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import OperationalError

from tests.support.homes import variables_for
from tests.support.silence import can_cut, wire
from ticketflow_orch.db.engine import TCP, connect_engine
from ticketflow_orch.local.databases import resolve
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.settings import Settings

silencing = pytest.mark.skipif(not can_cut(), reason="no process may drop packets here")

# In place of the minute: two seconds without an acknowledgement, or three without an answer to two keepalives.
QUICK = {"tcp_user_timeout": "2000", "keepalives_idle": "1", "keepalives_interval": "1", "keepalives_count": "2"}
PATIENCE = 20


def through(url: URL, port: int) -> URL:
    return URL.create("postgresql", url.username, host="127.0.0.1", port=port, database=url.database, query=QUICK)


def socket_of(server: EmbeddedServer) -> Path:
    return server.socket_directory / f".s.PGSQL.{server.url().port}"


@silencing
@pytest.mark.parametrize("asleep", [False, True], ids=["a statement that cannot be sent", "an answer that never comes"])
def test_a_black_hole_ends_what_waits_in_it(server: EmbeddedServer, url: URL, asleep: bool) -> None:
    with wire(socket_of(server)) as line:
        engine = connect_engine(through(url, line.port), "pytest")
        with engine.connect() as connection:
            connection.execute(text("SELECT 1"))
            if asleep:
                threading.Timer(0.5, line.cut).start()
            else:
                line.cut()
            began = time.monotonic()
            with pytest.raises(OperationalError):
                connection.execute(text("SELECT pg_sleep(CAST(:seconds AS float))"), {"seconds": 60 if asleep else 0})
            assert time.monotonic() - began < PATIENCE
        engine.dispose()


@silencing
def test_a_black_hole_ends_what_dagster_waits_for(server: EmbeddedServer, url: URL) -> None:
    with wire(socket_of(server)) as line:
        # As Dagster opens its storage: by nothing but the URL.
        engine = create_engine(through(url, line.port).set(drivername="postgresql+psycopg2"))
        with engine.connect() as connection:
            connection.execute(text("SELECT 1"))
            line.cut()
            began = time.monotonic()
            with pytest.raises(OperationalError):
                connection.execute(text("SELECT 1"))
            assert time.monotonic() - began < PATIENCE
        engine.dispose()


@pytest.mark.parametrize("place", [{"host": "db.example.com"}, {"query": {"host": "db.example.com"}}, {}])
def test_the_url_of_dagsters_storage_carries_the_bounds_that_it_does_not_name(
    monkeypatch: pytest.MonkeyPatch, place: dict[str, Any]
) -> None:
    ours = URL.create("postgresql", "u", database="ticketflow", **place)
    other = ours.set(database="dagster").update_query_dict({"tcp_user_timeout": "5000"})
    for name, value in variables_for(ours, other).items():
        monkeypatch.setenv(name, value)
    expected = {**place.get("query", {}), **TCP, "tcp_user_timeout": "5000"}
    assert dict(resolve(Settings()).dagster.query) == expected


def test_the_bounds_reach_the_driver(url: URL) -> None:
    engine = connect_engine(url, "pytest")
    with engine.connect() as connection:
        given = connection.connection.driver_connection.info.get_parameters()  # type: ignore[union-attr]
    engine.dispose()
    assert {name: given[name] for name in TCP if name != "keepalives"} == {
        name: value for name, value in TCP.items() if name != "keepalives"
    }
