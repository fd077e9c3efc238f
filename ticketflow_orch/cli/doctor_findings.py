"""What `ticketflow doctor` looks at, in turn: read only, nothing is started or changed.

The command is in `doctor`, which does not wait for Dagster; what `ticketflow health` asks too is in `dagster_state`.
"""

from __future__ import annotations

import importlib
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path

from dagster import DagsterInstance
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from ticketflow_orch.cli.dagster_state import daemon, paused_pools
from ticketflow_orch.cli.database_servers import examine_servers
from ticketflow_orch.cli.findings import Finding, State
from ticketflow_orch.dagster_host.helm_chart import chart_faults, is_made_by_chart
from ticketflow_orch.dagster_host.instance import (
    POOLS,
    dagster_home,
    home_is_current,
    storage_is_current,
    unlimited_pools,
    untouched,
)
from ticketflow_orch.db.engine import clocks, connect_engine, session_faults
from ticketflow_orch.db.errors import database_fault
from ticketflow_orch.db.installation import (
    Installation,
    disagreements,
    other_names,
    read_installation,
    standing_still,
    written,
)
from ticketflow_orch.db.migrate import require_current_schema
from ticketflow_orch.errors import TicketflowError
from ticketflow_orch.installation.agreed_routes import FIX, routes_changed
from ticketflow_orch.local.databases import DAGSTERS, OURS, Databases, fault, resolve
from ticketflow_orch.outbox.delivery.configuration import read_routes
from ticketflow_orch.settings import Settings, unknown_variables

_NAMED = 10
_LEAST_FREE = 1 << 30  # bytes
_LEAST_FILES = 10_000
_MIGRATE = "run `ticketflow migrate`"


def examine(settings: Settings) -> Iterator[Finding]:
    """Look at everything the project stands on, in the order in which things depend on each other.

    Raises:
        InvalidInput: the settings themselves contradict each other.
    """
    databases = resolve(settings)
    yield _versions()
    yield _configured(settings)
    yield from (Finding("settings", State.STOPPED, *sentence.split("; ", 1)) for sentence in unknown_variables())
    yield disk(settings, databases)
    yield _code_location()
    yield _server(databases)
    yield from examine_servers(databases)
    if databases.embedded is not None and not databases.embedded.is_running():
        return
    schema = list(_schema(databases))
    yield from schema
    if all(finding.state == State.OK for finding in schema):
        yield from _defences(databases)
        yield from _asked(databases, "installation", partial(_installation, settings))
        yield from _asked(databases, "names", _names)
        yield from _asked(databases, "payouts", _payouts)
    yield from _dagster(settings, databases)


def _asked(
    databases: Databases, subject: str, question: Callable[[Connection], Iterator[Finding]]
) -> Iterator[Finding]:
    """What the database answers; where it has no answer, as without a table, that is found, and hides nothing else."""
    engine = connect_engine(databases.ticketflow, "ticketflow doctor", connections=2)
    try:
        with engine.connect() as connection:
            yield from question(connection)
    except TicketflowError as error:
        yield Finding(subject, State.WRONG, str(error), _MIGRATE)
    except DBAPIError as error:
        no_answer = database_fault(error)
        if no_answer is None:
            raise
        found, _, fix = no_answer.sentence.removesuffix(".").partition("); ")
        yield Finding(subject, State.WRONG, f"{found})", fix)
    finally:
        engine.dispose()


def _versions() -> Finding:
    packages = ", ".join(f"{name} {version(name)}" for name in ("ticketflow-orch", "dagster", "dagster-postgres"))
    return Finding("versions", State.OK, f"{packages}, Python {platform.python_version()}")


def _configured(settings: Settings) -> Finding:
    plain = settings.model_dump(exclude={"database_url", "dagster_database_url"})
    return Finding("settings", State.OK, ", ".join(f"{name} {value}" for name, value in plain.items()))


def disk(settings: Settings, databases: Databases) -> Finding:
    """Whether there is room where this project writes on this host, and the home can be written to."""
    home = settings.home.absolute()
    folders = [home, *(place for place in (_statements(settings),) if place is not None)]
    if databases.embedded is not None:
        folders.append(databases.embedded.data)
    for folder in folders:
        there = next(path for path in (folder, *folder.parents) if path.exists())
        free = shutil.disk_usage(there).free
        if free < _LEAST_FREE:
            return Finding("disk", State.WRONG, f"{free >> 20} MiB free below {there}", "make room")
        files = os.statvfs(there)
        # File systems that make them as they need them have none.
        if files.f_files and files.f_favail < _LEAST_FILES:
            return Finding("disk", State.WRONG, f"{files.f_favail:,} more files fit below {there}", "delete some")
    there = next(path for path in (home, *home.parents) if path.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        return Finding("disk", State.WRONG, f"{there} is not writable", "set TICKETFLOW_HOME to a folder that is")
    return Finding("disk", State.OK, f"{shutil.disk_usage(there).free >> 30} GiB free below {home}")


def _statements(settings: Settings) -> Path | None:
    place = settings.statements_place
    return None if place is None or "://" in place else Path(place).absolute()


def _code_location() -> Finding:
    try:
        importlib.import_module("ticketflow_orch.definitions")
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
        return Finding("code location", State.WRONG, f"{type(error).__name__}: {error}", "correct what it names")
    return Finding("code location", State.OK, "ticketflow_orch.definitions loads")


def _server(databases: Databases) -> Finding:
    server = databases.embedded
    if server is None:
        return Finding("server", State.OK, f"your own: {databases.ticketflow!r}")
    if not server.is_running():
        fix = "commands start it as they need it; `ticketflow db start` makes it stay"
        return Finding("server", State.STOPPED, f"embedded, in {server.data}", fix)
    return Finding("server", State.OK, f"embedded, process {server.pid() or 'out of sight'}, in {server.data}")


def _schema(databases: Databases) -> Iterator[Finding]:
    def question(connection: Connection) -> Iterator[Finding]:
        require_current_schema(connection.engine)
        yield Finding("schema", State.OK, "at the revision of this code")

    found = fault(databases.ticketflow, OURS)
    if found is not None:
        yield Finding("schema", State.WRONG, str(found), f"where only the database is missing, {_MIGRATE}")
    else:
        yield from _asked(databases, "schema", question)


def _defences(databases: Databases) -> Iterator[Finding]:
    """Whether the database still guards money, lets runs do their work, and gives sessions what they ask for."""
    from ticketflow_orch.db.catalogue import foreign_triggers, grant_faults
    from ticketflow_orch.db.roles import foreign_owners
    from ticketflow_orch.settlement.invariants import missing_guards, order_faults

    for subject, question, right in (
        ("guards", missing_guards, "all that the migrations built is there and switched on"),
        ("triggers", foreign_triggers, "nobody else's changes or drops what only this project writes"),
        ("order of recording", order_faults, "ids of movements are drawn one at a time, ahead of all that was read"),
        ("grants", grant_faults, "each role holds what it needs, and no more"),
        ("owner", foreign_owners, "what the migrations made belongs to one owner"),
        ("session", session_faults, "its settings and bounds are those that were asked for"),
    ):
        yield from _asked(databases, subject, partial(_defence, subject, question, right))


def _defence(
    subject: str, question: Callable[[Connection], tuple[str, ...]], right: str, connection: Connection
) -> Iterator[Finding]:
    faults = question(connection)
    if faults:
        more = (f"and {len(faults) - _NAMED} more",) if faults[_NAMED:] else ()
        detail = "; ".join((*faults[:_NAMED], *more))
        yield Finding(subject, State.WRONG, detail, "`ticketflow audit` says what to do")
    else:
        yield Finding(subject, State.OK, right)


def _installation(settings: Settings, connection: Connection) -> Iterator[Finding]:
    installed = read_installation(connection)
    database_now, _ = clocks(connection)
    faults = list(disagreements(installed, settings, database_now))
    said = ", ".join(f"{name} {written(value)}" for name, value in installed.values.items())
    detail = " ".join(faults) or f"{said}; `ticketflow installation` says since when"
    yield Finding("installation", State.WRONG if faults else State.OK, detail, "as it says" if faults else "")
    still = standing_still(installed, settings)
    if still is not None:
        yield Finding("clock", State.STOPPED, still, "unset TICKETFLOW_FIXED_CLOCK, unless this is a demonstration")
    yield _routes(settings, installed)


def _names(connection: Connection) -> Iterator[Finding]:
    faults = tuple(other_names(connection, read_installation(connection)))
    detail = " ".join(faults) or "payouts and events have their names from this installation"
    yield Finding("names", State.WRONG if faults else State.OK, detail, "as it says" if faults else "")


def _routes(settings: Settings, installed: Installation) -> Finding:
    try:
        differences = routes_changed(installed.routes_digest, read_routes(settings))
    except TicketflowError as error:
        return Finding("routes", State.WRONG, str(error), "correct what it names")
    if not differences:
        return Finding("routes", State.OK, "those of the database")
    # A host that delivers nothing needs no file.
    state = State.STOPPED if settings.delivery is None else State.WRONG
    return Finding("routes", state, f"nothing is delivered from here: {'; '.join(differences)}", FIX)


def _payouts(connection: Connection) -> Iterator[Finding]:
    from ticketflow_orch.payouts.paid_from import in_words, read_paid_from, waiting

    paid_from, owed = read_paid_from(connection), waiting(connection)
    if owed:
        fix = "`ticketflow payouts from YYYY-MM` names the first month that is paid"
        yield Finding("payouts", State.STOPPED, f"{paid_from}, and {in_words(owed)} wait", fix)
    else:
        yield Finding("payouts", State.OK, str(paid_from))


def _dagster(settings: Settings, databases: Databases) -> Iterator[Finding]:
    found = fault(databases.dagster, DAGSTERS)
    if found is not None:
        yield Finding("dagster storage", State.WRONG, str(found), f"where only the database is missing, {_MIGRATE}")
        return
    home = dagster_home(settings)
    is_charts = is_made_by_chart(home)
    if not is_charts and not home_is_current(settings):
        file = home / "dagster.yaml"
        yield Finding("dagster instance", State.WRONG, f"{file} is not the one of this version", _MIGRATE)
        return
    wrong = chart_faults(home) if is_charts else []
    if wrong:
        yield Finding("dagster instance", State.WRONG, "; ".join(wrong), "as it says")
    else:
        yield Finding("dagster instance", State.OK, str(home))
    with untouched(home, databases) as instance:
        if not storage_is_current(instance):
            yield Finding("dagster storage", State.WRONG, "its tables are not those of the installed Dagster", _MIGRATE)
            return
        yield Finding("dagster storage", State.OK, "at the revision of the installed Dagster")
        yield _pools(instance)
        yield daemon(instance)


def _pools(instance: DagsterInstance) -> Finding:
    unlimited = unlimited_pools(instance, POOLS)
    if unlimited:
        return Finding("pools", State.WRONG, f"no limit is set for {', '.join(unlimited)}", _MIGRATE)
    paused = paused_pools(instance)
    if paused:
        fix = "set its limit to 1 in the UI: Deployment, Concurrency"
        return Finding("pools", State.STOPPED, f"paused by a limit of 0: {', '.join(paused)}", fix)
    limits = {pool.name: pool.limit for pool in instance.event_log_storage.get_pool_limits()}
    return Finding("pools", State.OK, ", ".join(f"{name} {limit}" for name, limit in sorted(limits.items())))
