"""`ticketflow health`: for a watchdog outside of what it watches."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from ticketflow_orch.cli.exit_codes import FAILED

if TYPE_CHECKING:
    from dagster import DagsterInstance
    from sqlalchemy import Engine

    from ticketflow_orch.db.installation import Installation
    from ticketflow_orch.local.databases import Databases
    from ticketflow_orch.monitoring.deadlines import Asked
    from ticketflow_orch.settings import Settings

_LAUNCH_AGAIN = "correct what it says and launch it again in the UI, or leave it to its next window"
# Every daily window comes within it, also on the day with 25 hours.
_WINDOWS_WITHIN = timedelta(hours=26)
# In seconds: when all must be said, well below what a watchdog waits; and what is left then for the last questions.
LONGEST = 15.0
_LAST = 4.0


def health(
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object: whether all is well, and what is not.")
    ] = False,
) -> None:
    """Print one line for each problem; exit code 1 when there is any. Starts and changes nothing.

    Looks at databases, schema, daemon, schedules and sensors, runs without a worker, pools, disks, work that is due for
    too long, windows that were missed or not completed, runs and checks that failed, stale claims, unsettled months,
    what stands in the way of months, the outbox, alerts that only a person can end, and the clocks. Ends within half a
    minute, whatever becomes of those who are asked.
    """
    from ticketflow_orch.settings import settings

    found = []
    for problem in examine(settings()):
        found.append(problem)
        if not as_json:
            typer.echo(problem)
    if as_json:
        typer.echo(json.dumps({"ok": not found, "problems": found}, ensure_ascii=False))
    if found:
        raise typer.Exit(FAILED)
    if not as_json:
        typer.echo("ok")


def examine(settings: Settings, longest: float | None = None) -> Iterator[str]:
    """One line for each problem, what others depend on first; complete after `longest` seconds, silent or not.

    Both databases and this host are asked at once, so that one that does not answer hides nothing about the others.

    Raises:
        InvalidInput: the settings themselves contradict each other.
    """
    from ticketflow_orch.local.databases import resolve
    from ticketflow_orch.monitoring.deadlines import Asked, NoAnswerError

    databases = resolve(settings)
    longest = LONGEST if longest is None else longest
    deadline = time.monotonic() + longest
    is_usable = threading.Event()
    ours = Asked(lambda: _ours(databases, settings, is_usable))
    dagsters = Asked(lambda: _dagsters(databases, settings, partial(_has_answered, ours, is_usable, deadline - _LAST)))
    host = Asked(lambda: _host(databases, settings))
    servers = Asked(lambda: _servers(databases))
    for asked, silent in (
        (ours, "database: it accepts connections and does not answer"),
        (servers, "servers: one of several accepts connections and does not answer"),
        (dagsters, "dagster: its database accepts connections and does not answer"),
        (host, "disk: its files do not answer"),
    ):
        try:
            yield from asked.until(deadline)
        except NoAnswerError:
            yield (f"{silent} within {longest:.0f} s; see its server, the network or pooler before it, and its locks.")


def _has_answered(asked: Asked[str], is_usable: threading.Event, deadline: float) -> bool:
    return asked.wait(deadline) and is_usable.is_set()


def _ours(databases: Databases, settings: Settings, is_usable: threading.Event) -> Iterator[str]:
    from ticketflow_orch.db.engine import connect_engine

    engine = connect_engine(databases.ticketflow, "ticketflow health", connections=2)
    try:
        found = _database(databases, engine)
        if found is not None:
            yield found
        else:
            yield from _answered(_situation(engine, settings))
            is_usable.set()
    finally:
        engine.dispose()


def _dagsters(databases: Databases, settings: Settings, ours_is_usable: Callable[[], bool]) -> Iterator[str]:
    from ticketflow_orch.db.engine import connect_engine

    engine = connect_engine(databases.ticketflow, "ticketflow health", connections=1)
    try:
        yield from _answered(_dagster(databases, settings, lambda: engine if ours_is_usable() else None))
    finally:
        engine.dispose()


def _host(databases: Databases, settings: Settings) -> Iterator[str]:
    from ticketflow_orch.cli.doctor_findings import disk
    from ticketflow_orch.cli.findings import State

    finding = disk(settings, databases)
    if finding.state != State.OK:
        yield f"disk: {finding.detail}; {finding.fix}."


def _servers(databases: Databases) -> Iterator[str]:
    """What is wrong with the servers of a URL that names several."""
    from ticketflow_orch.cli.database_servers import examine_standing
    from ticketflow_orch.cli.findings import State

    for finding in examine_standing(databases):
        if finding.state != State.OK:
            yield f"{finding.subject}: {finding.detail}; {finding.fix}."


def _answered(lines: Iterator[str]) -> Iterator[str]:
    """`lines`, with one that says why in place of those that there was no answer for."""
    from sqlalchemy.exc import DBAPIError

    from ticketflow_orch.errors import TicketflowError

    try:
        yield from lines
    except DBAPIError as error:
        why = str(error.orig).strip().splitlines()[0]
        yield f"database: a question had no answer ({why}); see the server's log."
    except TicketflowError as error:
        yield f"data: a question had no answer: {error}"


def _database(databases: Databases, engine: Engine) -> str | None:
    from ticketflow_orch.db.migrate import require_current_schema
    from ticketflow_orch.errors import TicketflowError
    from ticketflow_orch.local.databases import OURS, fault

    found = fault(databases.ticketflow, OURS)
    if found is not None:
        return f"database: {found}"
    try:
        require_current_schema(engine)
    except TicketflowError as error:
        return f"schema: {error}"
    return None


def _situation(engine: Engine, settings: Settings) -> Iterator[str]:
    from ticketflow_orch.cli.session import take_over
    from ticketflow_orch.db.installation import read_installation, standing_still
    from ticketflow_orch.monitoring.health import problems
    from ticketflow_orch.monitoring.snapshot import read_situation

    with engine.connect() as connection:
        installed = read_installation(connection)
    # The windows of the code location are those of the database, whatever the environment says.
    take_over(installed)
    yield from problems(read_situation(engine, settings), installed.business_timezone, settings.outbox_late)
    yield from _standing_alerts(engine)
    still = standing_still(installed, settings)
    if still is not None:
        yield f"clock: {still}; unset TICKETFLOW_FIXED_CLOCK."
    if settings.delivery is not None or installed.routes_digest is None:
        yield from _other_routes(settings, installed)


def _standing_alerts(engine: Engine) -> Iterator[str]:
    """What was alerted, stands, and shows nowhere else."""
    from ticketflow_orch.outbox.alerts import standing

    with engine.connect() as connection:
        found = standing(connection, ["PayoutContradicted"])
    for one in found:
        times = "" if one.occurrences == 1 else f", {one.occurrences:,} times"
        yield (
            f"alert {one.id}: {one.kind} {one.subject}{times}, since {one.first_at.isoformat(timespec='seconds')}; "
            f"`ticketflow alerts list` shows it, and `ticketflow alerts resolve {one.id}` ends it when it is seen to."
        )


def _other_routes(settings: Settings, installed: Installation) -> Iterator[str]:
    from ticketflow_orch.installation.agreed_routes import FIX, routes_changed
    from ticketflow_orch.outbox.delivery.configuration import read_routes

    differences = routes_changed(installed.routes_digest, read_routes(settings))
    if differences:
        yield f"routes: nothing is delivered from here: {'; '.join(differences)}; {FIX}."


def _dagster(databases: Databases, settings: Settings, ours: Callable[[], Engine | None]) -> Iterator[str]:
    """What Dagster's storage says; `ours` waits for our own database, and is None where that does not answer."""
    from ticketflow_orch.cli.automation import standing_still
    from ticketflow_orch.cli.dagster_state import daemon, daemon_since, paused_pools, runs_without_worker
    from ticketflow_orch.cli.findings import State
    from ticketflow_orch.dagster_host.helm_chart import chart_faults, is_made_by_chart
    from ticketflow_orch.dagster_host.instance import dagster_home, home_is_current, storage_is_current, untouched
    from ticketflow_orch.local.databases import DAGSTERS, fault

    found = fault(databases.dagster, DAGSTERS)
    if found is not None:
        yield f"dagster: {found}"
        return
    home = dagster_home(settings)
    if is_made_by_chart(home):
        yield from (f"dagster: {wrong}." for wrong in chart_faults(home))
    elif not home_is_current(settings):
        yield f"dagster: the instance in {home} is not the one of this version; run `ticketflow migrate`."
        return
    with untouched(home, databases) as instance:
        if not storage_is_current(instance):
            yield "dagster: its tables are not those of the installed Dagster; run `ticketflow migrate`."
            return
        finding = daemon(instance)
        if finding.state != State.OK:
            yield f"daemon: {finding.detail}; {finding.fix}."
        yield from runs_without_worker(instance)
        paused = paused_pools(instance)
        if paused:
            yield f"pools: paused by a limit of 0: {', '.join(paused)}; set it to 1 in the UI: Deployment, Concurrency."
        engine = ours()
        if engine is not None:
            alive = finding.state == State.OK
            yield from standing_still(instance, is_daemon_alive=alive, daemon_since=daemon_since(instance))
            yield from _missed_windows(engine, instance, settings)
            yield from _failed_runs(engine, instance)
            yield from _waiting_shards(instance)
            yield from _red_checks(instance)


def _missed_windows(engine: Engine, instance: DagsterInstance, settings: Settings) -> Iterator[str]:
    from sensors.missed_windows import windows
    from ticketflow_orch import clock
    from ticketflow_orch.jobs.intervals import LATEST_REQUEST
    from ticketflow_orch.jobs.missed import first_firing, without_firing

    now = clock.now(settings.fixed_clock)
    with engine.connect() as connection:
        known_since = first_firing(connection)
        if known_since is None:
            return
        expected = windows(connection, instance, max(known_since, now - _WINDOWS_WITHIN), now - LATEST_REQUEST)
        missed = without_firing(connection, expected)
    for window in missed:
        which = f"{window.scheduled_for.isoformat(timespec='seconds')} {window.partition or ''}".strip()
        yield f"{window.job}: the window {which} was never started; the next one makes up for it, or launch the job."


def _waiting_shards(instance: DagsterInstance) -> Iterator[str]:
    """Months that are to be settled by several runs, and are not."""
    from datetime import UTC, datetime

    from sensors.settlement_shards import waiting_shards

    yield from waiting_shards(instance, datetime.now(UTC))


def _red_checks(instance: DagsterInstance) -> Iterator[str]:
    """Checks about money whose last judgement was that something is wrong. What only warns has lines of its own."""
    from sensors.failed_checks import standing_red

    for one in standing_red(instance):
        if not one.only_warns:
            yield (
                f"check: {one.subject} is red since {one.at.isoformat(timespec='seconds')}: "
                f"{one.description.rstrip('.')}; `ticketflow audit` says what to do, and audit_job judges again."
            )


def _failed_runs(engine: Engine, instance: DagsterInstance) -> Iterator[str]:
    """Windows of a day that nobody completes, and other runs that failed, until a later one makes up for them."""
    from datetime import UTC, datetime

    from schedules import ALWAYS_REQUESTING
    from sensors.failed_runs import standing_failures
    from ticketflow_orch.jobs.intervals import job_of
    from ticketflow_orch.jobs.unfinished import unfinished_windows

    daily = [job_of(schedule.job_name) for schedule in ALWAYS_REQUESTING]
    with engine.connect() as connection:
        unfinished = unfinished_windows(connection, daily)
    failed = {one.run_id: one for one in standing_failures(instance, datetime.now(UTC) - _WINDOWS_WITHIN)}
    for window in unfinished:
        run = failed.pop(window.run_id, None)
        error = window.error or (run.error if run else "it left no error")
        at = window.scheduled_for.isoformat(timespec="seconds")
        yield f"{window.job}: the window {at} is not completed, run {window.run_id} failed: {error}; {_LAUNCH_AGAIN}."
    for run in failed.values():
        if run.work in {window.job for window in unfinished}:
            continue
        which = run.partition or run.window or run.at.isoformat(timespec="seconds")
        yield f"{run.work}: run {run.run_id} for {which} failed: {run.error}; {_LAUNCH_AGAIN}."
