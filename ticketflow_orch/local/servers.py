"""The servers of a URL, each asked by itself: which takes writes, which follow, and whether they are encrypted."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import psycopg
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.db.hosts import Host, hosts_of
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.local.databases import reason

# What else names a server, or says which of several is meant.
_OF_ONE = ["host", "port", "hostaddr", "target_session_attrs"]


@dataclass(frozen=True, slots=True)
class Server:
    """What one server says of itself; `fault`: why it says nothing.

    `follows` another one, `behind` by so many seconds since it replayed a transaction that was written elsewhere, which
    grows while nothing is written. `is_encrypted`: what is said to it.
    """

    host: Host
    fault: str | None = None
    follows: bool = False
    behind: float = 0
    is_encrypted: bool = False


def servers(url: URL) -> tuple[Server, ...]:
    """Every server that `url` names, in its order, all asked at once."""
    hosts = hosts_of(url)
    addresses = str(url.query.get("hostaddr", "")).split(",")
    with ThreadPoolExecutor(len(hosts)) as threads:
        asked = [
            threads.submit(_ask, partial(_alone, url), host, address)
            for host, address in zip(hosts, (addresses * len(hosts))[: len(hosts)], strict=True)
        ]
        return tuple(each.result() for each in asked)


def _alone(url: URL, host: Host, address: str) -> URL:
    named = {"host": host.name, "hostaddr": address}
    only = url.set(host=None, port=host.port).difference_update_query(_OF_ONE)
    return only.update_query_dict({name: value for name, value in named.items() if value})


def _ask(alone: partial[URL], host: Host, address: str) -> Server:
    engine = connect_engine(alone(host, address), "ticketflow servers", connections=1)
    try:
        with engine.connect() as connection:
            row = connection.exec_driver_sql(_QUESTION).one()
            driver = connection.connection.driver_connection
            is_encrypted = isinstance(driver, psycopg.Connection) and driver.pgconn.ssl_in_use
            return Server(host, follows=row.follows, behind=row.behind, is_encrypted=is_encrypted)
    except DBAPIError as error:
        return Server(host, fault=reason(error))
    except TicketflowError as error:
        return Server(host, fault=str(error))
    finally:
        engine.dispose()


_QUESTION = """
    SELECT pg_is_in_recovery() AS follows,
        coalesce(extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp()), 0)::float AS behind
"""
