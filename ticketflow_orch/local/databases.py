"""Which databases serve: the embedded server's two, or the two that the environment names. Decided here, once.

TicketFlow's tables and Dagster's own storage live in a database each. Ours is reached with psycopg 3; Dagster's
storage needs psycopg 2, which its URL must say, since a bare `postgresql://` means psycopg 3 to SQLAlchemy 2.1.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from ticketflow_orch.db.engine import TCP, connect_engine, parse_url
from ticketflow_orch.db.hosts import hosts_of
from ticketflow_orch.errors import Conflict, InvalidInput, PreconditionFailed, TicketflowError, Unavailable
from ticketflow_orch.local.postgres import EmbeddedServer
from ticketflow_orch.settings import Settings

OURS = "TICKETFLOW_DATABASE_URL"
DAGSTERS = "TICKETFLOW_DAGSTER_DATABASE_URL"
MINIMUM_POSTGRES = 15
# Longer than another process may take to stop the embedded server, which is what we would wait for.
_LONGEST_WAIT = 90.0


@dataclass(frozen=True, slots=True)
class Databases:
    """Where TicketFlow's tables and Dagster's storage are; `embedded` is their server when it is ours to run."""

    ticketflow: URL
    dagster: URL
    embedded: EmbeddedServer | None

    def environment(self) -> dict[str, str]:
        """The variables by which another process finds the same databases. Their values may hold passwords."""
        return {
            OURS: self.ticketflow.render_as_string(hide_password=False),
            DAGSTERS: self.dagster.render_as_string(hide_password=False),
        }


def resolve(settings: Settings) -> Databases:
    """The databases that `settings` mean; nothing is started or asked.

    Raises:
        InvalidInput: one of the two URLs is missing or wrong, or both name the same database.
    """
    server = EmbeddedServer(settings.home)
    ours = _with_driver(server.url("ticketflow"), "psycopg")
    dagsters = _with_driver(server.url("ticketflow_dagster"), "psycopg2")
    if settings.database_url is None and settings.dagster_database_url is None:
        return Databases(ours, dagsters, server)
    if settings.database_url is None:
        raise InvalidInput(f"{DAGSTERS} is set but {OURS} is not; set both, or neither for the embedded server.")
    if settings.dagster_database_url is None:
        raise InvalidInput(f"{OURS} is set but {DAGSTERS} is not; set it to a second database, for Dagster's storage.")
    given = _with_driver(parse_url(settings.database_url.get_secret_value(), OURS), "psycopg")
    dagster = _with_driver(parse_url(settings.dagster_database_url.get_secret_value(), DAGSTERS), "psycopg2")
    if given.database == dagster.database and not set(hosts_of(given)).isdisjoint(hosts_of(dagster)):
        raise InvalidInput(f"{OURS} and {DAGSTERS} both name {_place(given)}; each needs a database of its own.")
    # What we hand to child processes and print for shells names the embedded server outright; it stays ours to run.
    if (given, dagster) == (ours, dagsters):
        return Databases(given, dagster, server)
    return Databases(given, _giving_up_silence(dagster), None)


def dagster_only(settings: Settings) -> dict[str, str]:
    """The variable by which a process finds Dagster's storage alone, whatever is known here of TicketFlow's database.

    Raises:
        InvalidInput: the URL is missing where TicketFlow's is given, or wrong.
    """
    if settings.database_url is not None or settings.dagster_database_url is None:
        url = resolve(settings).dagster
    else:
        given = parse_url(settings.dagster_database_url.get_secret_value(), DAGSTERS)
        url = _giving_up_silence(_with_driver(given, "psycopg2"))
    return {DAGSTERS: url.render_as_string(hide_password=False)}


@contextmanager
def serving(
    settings: Settings, patience: float = 60, *, create: bool = True, dagster: bool = True
) -> Iterator[Databases]:
    """Both databases, existing and answering, for as long as the block lasts.

    The embedded server is started when it does not run. The last process to leave such a block stops it, no matter
    which one started it, unless `ensure_running` asked for it to stay; in order if that takes no longer than `patience`
    seconds. A database that is missing is created; on a server of one's own only if `create`. There, `dagster` says
    whether its storage is needed at all.

    Raises:
        InvalidInput: as `resolve` does.
        PreconditionFailed: a database is missing and may not be created, or its server is too old.
        Unavailable: a database cannot be reached.
        Conflict: another process has been stopping the embedded server for too long.
    """
    databases = resolve(settings)
    if databases.embedded is None:
        _require(databases, create=create, dagster=dagster)
        yield databases
        return
    with _kept_by_us(databases.embedded, patience):
        databases.embedded.start()
        _require(databases)
        yield databases


def ensure_running(settings: Settings) -> Databases:
    """Both databases, existing and answering; the embedded server runs on until `stop`.

    Raises:
        TicketflowError: as `serving` does.
    """
    databases = resolve(settings)
    if databases.embedded is None:
        _require(databases)
        return databases
    with _kept_by_us(databases.embedded, patience=60):
        (databases.embedded.directory / "postgres.stays").touch()
        databases.embedded.start()
        _require(databases)
    return databases


def embedded(settings: Settings) -> EmbeddedServer:
    """The embedded server, running or not.

    Raises:
        InvalidInput: the settings name a server that is not ours.
    """
    server = resolve(settings).embedded
    if server is None:
        raise InvalidInput(f"{OURS} names a server of your own; only the embedded one is started and stopped here.")
    return server


def stop(settings: Settings) -> bool:
    """Stop the embedded server, even while others use it; returns whether it was running.

    Raises:
        InvalidInput: the settings name a server that is not ours.
    """
    server = embedded(settings)
    if not server.directory.is_dir():
        return False
    (server.directory / "postgres.stays").unlink(missing_ok=True)
    return server.stop()


def fault(url: URL, variable: str) -> TicketflowError | None:
    """Why no session can be had in the database at `url`, in one sentence without its password; None when it can.

    Unavailable where it cannot be reached, PreconditionFailed where its server is too old. `variable` is the setting to
    correct.
    """
    engine = connect_engine(url, "ticketflow reachability", connections=1)
    try:
        with engine.connect() as connection:
            version = int(connection.exec_driver_sql("SHOW server_version_num").scalar_one()) // 10_000
    except DBAPIError as error:
        why = reason(error)
        return Unavailable(f"No connection to {_place(url)} ({why}); {_fix(why, variable)}.")
    except TicketflowError as error:
        return error
    finally:
        engine.dispose()
    if version < MINIMUM_POSTGRES:
        return PreconditionFailed(
            f"{_place(url)} is Postgres {version}; {MINIMUM_POSTGRES} or later is needed, correct {variable}."
        )
    return None


def _require(databases: Databases, *, create: bool = True, dagster: bool = True) -> None:
    for url, variable in ((databases.ticketflow, OURS), (databases.dagster, DAGSTERS))[: 1 + dagster]:
        found = fault(url, variable)
        if found is not None and not create and _exists(url) is False:
            raise PreconditionFailed(f"{_place(url)} does not exist; run `ticketflow migrate`, or correct {variable}.")
        # By ourselves, or by somebody else since we looked.
        if found is not None and create and _is_made(url):
            found = fault(url, variable)
        if found is not None:
            raise found


def _exists(url: URL) -> bool | None:
    """Whether the database that `url` names exists; None: nobody can be asked."""
    engine = connect_engine(url.set(database="postgres"), "ticketflow bootstrap", connections=1)
    try:
        with engine.connect() as connection:
            return bool(connection.exec_driver_sql(_NAMED_SO, {"name": url.database}).scalar_one())
    except DBAPIError:
        return None
    finally:
        engine.dispose()


def _is_made(url: URL) -> bool:
    """Whether the database that `url` names exists, created here where it did not; False: nobody can be asked.

    Raises:
        PreconditionFailed: it is missing, and the role may not create it.
    """
    engine = connect_engine(url.set(database="postgres"), "ticketflow bootstrap", connections=1)
    try:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            if connection.exec_driver_sql(_NAMED_SO, {"name": url.database}).scalar_one():
                return True
            name = connection.dialect.identifier_preparer.quote_identifier(str(url.database))
            try:
                connection.exec_driver_sql(f"CREATE DATABASE {name}")
            except DBAPIError as error:
                # Somebody else was quicker when it is there after all.
                if not connection.exec_driver_sql(_NAMED_SO, {"name": url.database}).scalar_one():
                    raise PreconditionFailed(
                        f"{_place(url)} does not exist and could not be created ({reason(error)}); "
                        f"have CREATE DATABASE {name} run by a role that may."
                    ) from None
            return True
    except DBAPIError:
        return False
    finally:
        engine.dispose()


@contextmanager
def _kept_by_us(server: EmbeddedServer, patience: float) -> Iterator[None]:
    """Count this process among the users of `server`; the last one to leave stops it.

    The count is a shared file lock, so that the kernel strikes off a process that was killed.
    """
    server.directory.mkdir(parents=True, exist_ok=True)
    with (server.directory / "postgres.users").open("a") as users:
        _share(users)
        try:
            yield
        finally:
            if _is_alone(users) and not (server.directory / "postgres.stays").exists():
                server.stop(patience=patience)


def _share(users: IO[str]) -> None:
    deadline = time.monotonic() + _LONGEST_WAIT
    while True:
        try:
            fcntl.flock(users, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise Conflict(
                    f"Another process has been stopping the embedded Postgres for {_LONGEST_WAIT:.0f} s "
                    f"and holds {users.name}; end that process."
                ) from None
            time.sleep(0.1)
        else:
            return


def _is_alone(users: IO[str]) -> bool:
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _with_driver(url: URL, driver: str) -> URL:
    return url.set(drivername=f"postgresql+{driver}")


def storage_url(given: str) -> URL:
    """The URL of Dagster's storage as its driver takes it, whatever its hosts are written like.

    Raises:
        InvalidInput: it is none.
    """
    return _giving_up_silence(_with_driver(parse_url(given, DAGSTERS), "psycopg2"))


def _giving_up_silence(url: URL) -> URL:
    """`url` with the time limits that our own sessions have: Dagster opens its sessions by nothing but its URL.

    Its host may stand among the options, or in the environment; a socket needs none.
    """
    missing = {name: value for name, value in TCP.items() if name not in url.query}
    is_socket = all(host.name.startswith(("/", "@")) for host in hosts_of(url))
    return url if is_socket else url.update_query_dict(missing)


def _place(url: URL) -> str:
    """The database, role and servers of `url` in words, never its password."""
    role = f" as {url.username!r}" if url.username else ""
    return f"database {url.database!r}{role} on {' or '.join(map(str, hosts_of(url)))}"


def reason(error: DBAPIError) -> str:
    """Why there was no connection, in libpq's words."""
    # libpq says "connection to server at … failed: FATAL:  reason", then hints on further lines. Of several hosts each
    # has a line of its own, which begins with a dash.
    lines = str(error.orig).splitlines()
    each = dict.fromkeys(_bare(line) for line in lines if line.startswith("- "))
    return ", ".join(each) if each else _bare(lines[0])


def _bare(line: str) -> str:
    return line.rsplit("failed: ", 1)[-1].removeprefix("FATAL:").strip().rstrip(".")


def _fix(why: str, variable: str) -> str:
    if "certificate" in why or "SSL" in why:
        return f"correct the server's certificate, or the host, sslmode and sslrootcert of {variable}"
    if "startup parameter" in why:
        return "let the pooler ignore it (ignore_startup_parameters = options), then we set it by ourselves"
    if "read-only" in why or "hot standby" in why:
        return f"promote one that follows, or name the primary in {variable}"
    return f"start that server or correct {variable}"


_NAMED_SO = "SELECT count(*) FROM pg_database WHERE datname = %(name)s::name"
