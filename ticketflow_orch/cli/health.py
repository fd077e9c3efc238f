"""`ticketflow health`: for a watchdog outside of what it watches."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from dagster import DagsterInstance
    from sqlalchemy import Engine

    from ticketflow_orch.databases import Databases
    from ticketflow_orch.installation import Installation
    from ticketflow_orch.settings import Settings

# Every daily window comes within it, also on the day with 25 hours.
_WINDOWS_WITHIN = timedelta(hours=26)


def health() -> None:
    """Print one line for each problem; exit code 1 when there is any. Starts and changes nothing.

    Looks at databases, schema, daemon, runs without a worker, work that is due for too long, missed windows, stale
    claims, unsettled months, what stands in the way of months, the outbox and the clocks.
    """
    from ticketflow_orch.settings import settings

    found = False
    for problem in examine(settings()):
        found = True
        typer.echo(problem)
    if found:
        raise typer.Exit(1)
    typer.echo("ok")


def examine(settings: Settings) -> Iterator[str]:
    """One line for each problem, what others depend on first.

    Raises:
        InputError: the settings themselves contradict each other.
    """
    from ticketflow_orch.database import connect_engine
    from ticketflow_orch.databases import resolve

    databases = resolve(settings)
    engine = connect_engine(databases.ticketflow, "ticketflow health", connections=2)
    try:
        found = _database(databases, engine)
        if found is not None:
            yield found
        else:
            yield from _answered(_situation(engine, settings))
        yield from _answered(_dagster(databases, settings, engine if found is None else None))
    finally:
        engine.dispose()


def _answered(lines: Iterator[str]) -> Iterator[str]:
    """`lines`, with one that says why in place of those that there was no answer for."""
    from sqlalchemy.exc import DBAPIError

    from ticketflow_orch.errors import InputError

    try:
        yield from lines
    except DBAPIError as error:
        why = str(error.orig).strip().splitlines()[0]
        yield f"database: a question had no answer ({why}); see the server's log."
    except InputError as error:
        yield f"data: a question had no answer: {error}"


def _database(databases: Databases, engine: Engine) -> str | None:
    from ticketflow_orch.databases import OURS, fault
    from ticketflow_orch.errors import InputError
    from ticketflow_orch.migrate import require_current_schema

    found = fault(databases.ticketflow, OURS)
    if found is not None:
        return f"database: {found}"
    try:
        require_current_schema(engine)
    except InputError as error:
        return f"schema: {error}"
    return None


def _situation(engine: Engine, settings: Settings) -> Iterator[str]:
    from ticketflow_orch.cli.session import take_over
    from ticketflow_orch.health import problems
    from ticketflow_orch.installation import read_installation, standing_still
    from ticketflow_orch.situation import read_situation

    with engine.connect() as connection:
        installed = read_installation(connection)
    # The windows of the code location are those of the database, whatever the environment says.
    take_over(installed)
    yield from problems(read_situation(engine, settings), installed.business_timezone, settings.outbox_late)
    still = standing_still(installed, settings)
    if still is not None:
        yield f"clock: {still}; unset TICKETFLOW_FIXED_CLOCK."
    if settings.delivery is not None or installed.routes_digest is None:
        yield from _other_routes(settings, installed)


def _other_routes(settings: Settings, installed: Installation) -> Iterator[str]:
    from ticketflow_orch.delivery.agreed import FIX, routes_changed
    from ticketflow_orch.delivery.configuration import read_routes

    differences = routes_changed(installed.routes_digest, read_routes(settings))
    if differences:
        yield f"routes: nothing is delivered from here: {'; '.join(differences)}; {FIX}."


def _dagster(databases: Databases, settings: Settings, engine: Engine | None) -> Iterator[str]:
    from ticketflow_orch.cli.diagnosis import State, daemon, runs_without_worker
    from ticketflow_orch.databases import DAGSTERS, fault
    from ticketflow_orch.instance import dagster_home, home_is_current, storage_is_current, untouched

    found = fault(databases.dagster, DAGSTERS)
    if found is not None:
        yield f"dagster: {found}"
        return
    home = dagster_home(settings)
    if not home_is_current(settings):
        yield f"dagster: the instance in {home} is not the one of this version; run `ticketflow migrate`."
        return
    with untouched(home, databases) as instance:
        if not storage_is_current(instance):
            yield "dagster: its tables are not those of the installed Dagster; run `ticketflow migrate`."
            return
        finding = daemon(instance)
        if finding.state != State.OK:
            yield f"daemon: {finding.detail}; {finding.mend}."
        yield from runs_without_worker(instance)
        if engine is not None:
            yield from _missed_windows(engine, instance, settings)


def _missed_windows(engine: Engine, instance: DagsterInstance, settings: Settings) -> Iterator[str]:
    from sensors.missed_windows import PATIENCE, windows
    from ticketflow_orch import clock
    from ticketflow_orch.missed import first_firing, without_firing

    now = clock.now(settings.fixed_clock)
    with engine.connect() as connection:
        known_since = first_firing(connection)
        if known_since is None:
            return
        expected = windows(connection, instance, max(known_since, now - _WINDOWS_WITHIN), now - PATIENCE)
        missed = without_firing(connection, expected)
    for window in missed:
        which = f"{window.scheduled_for.isoformat(timespec='seconds')} {window.partition or ''}".strip()
        yield f"{window.job}: the window {which} was never started; it mends itself at the next one, or launch the job."
