"""The Dagster instance: from nothing to a home, a storage and pool limits, as often as anybody asks.

The databases that it lies on are started by `local.databases`; its own storage class is in `storage`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from alembic.util.exc import CommandError
from dagster import DagsterInstance

from ticketflow_orch.dagster_host.dagster_internals import InstanceRef
from ticketflow_orch.dagster_host.run_launcher import ProcessRunLauncher
from ticketflow_orch.db.advisory_locks import one_at_a_time
from ticketflow_orch.db.engine import SessionLimits, connect_engine
from ticketflow_orch.db.installation import Installation, require_agreement
from ticketflow_orch.db.migrate import migrate, require_current_schema
from ticketflow_orch.errors import PreconditionFailed
from ticketflow_orch.installation.agreed_routes import adopt_routes
from ticketflow_orch.installation.deciding import adopt
from ticketflow_orch.jobs import intervals
from ticketflow_orch.local.account import account
from ticketflow_orch.local.databases import DAGSTERS, OURS, Databases, serving
from ticketflow_orch.secret_variables import FILE
from ticketflow_orch.settings import Settings
from ticketflow_orch.settings import settings as current_settings

# Those of all jobs.
POOLS = intervals.POOLS
# Any constant serves, as long as every version of this project takes the same.
_TURN = 6_240_173
_LONGEST_WAIT = 10 * 60.0


@dataclass(frozen=True, slots=True)
class Instance:
    """An instance that is ready to use: its databases, and the variables by which other processes find it.

    The values of `environment` may hold passwords: hand them to child processes, keep them out of logs.
    `migrated` says whether TicketFlow's schema had to be brought up to date.
    """

    databases: Databases
    environment: Mapping[str, str]
    migrated: bool


@dataclass(frozen=True, slots=True)
class Preparing:
    """What a person asked to be prepared: also a server of their own, and a new database for rehearsals."""

    own_server: bool = False
    rehearsal: bool = False


@contextmanager
def running(
    settings: Settings,
    pools: Iterable[str] = POOLS,
    patience: float = 60,
    *,
    asked: Preparing = Preparing(),
) -> Iterator[Instance]:
    """A bootstrapped instance for as long as the block lasts; its embedded server is stopped by its last user.

    The stop is in order if that takes no longer than `patience` seconds.

    Raises:
        TicketflowError: as `bootstrap` does, or a database cannot be reached.
    """
    with serving(settings, patience, create=asked.own_server) as databases:
        yield bootstrap(settings, databases, pools, asked=asked)


def bootstrap(
    settings: Settings,
    databases: Databases,
    pools: Iterable[str] = POOLS,
    *,
    asked: Preparing = Preparing(),
) -> Instance:
    """Bring TicketFlow's schema, Dagster's home and storage, and the limits of `pools` to what this code needs.

    Safe to repeat, and to start twice at once: the second waits, then finds nothing left. The variables of the result
    are set in this process too, since Dagster reads its storage's URL from there, and the code location what the
    database has decided. The databases of a server of one's own are prepared only when that was asked for.

    Raises:
        PreconditionFailed: a schema or Dagster's storage is ahead of this code, or behind it on a server of one's own.
        TicketflowError: the settings and the database disagree, or another bootstrap does not end.
    """
    prepares = databases.embedded is not None or asked.own_server
    migrated = prepares and migrate(databases.ticketflow)
    installed = _installed(settings, databases, asked if prepares else None)
    write_home(settings)
    variables = environment(settings, databases) | installed.environment
    os.environ.update(variables)
    for name in (OURS, DAGSTERS):
        # Said by the variable itself from here on, for all that this process starts.
        os.environ.pop(f"{name}{FILE}", None)
    current_settings.cache_clear()
    if not prepares:
        _require_storage(settings, databases)
    unbounded = SessionLimits(statement_timeout=0, idle_in_transaction_timeout=0)
    engine = connect_engine(databases.dagster, "ticketflow bootstrap", limits=unbounded, connections=1)
    try:
        with (
            one_at_a_time(engine, _TURN, "bootstrap", _LONGEST_WAIT),
            DagsterInstance.from_config(variables["DAGSTER_HOME"]) as instance,
        ):
            _upgrade_storage(instance)
            _limit_pools(instance, pools)
    finally:
        engine.dispose()
    return Instance(databases, variables, migrated)


def environment(settings: Settings, databases: Databases) -> dict[str, str]:
    """The variables that plain `dagster …` commands and our own processes need to find this instance."""
    return {
        **places(settings),
        **databases.environment(),
    }


def places(settings: Settings) -> dict[str, str]:
    """The variables by which any process finds the instance's home; no secret is among them."""
    return {
        "TICKETFLOW_HOME": str(settings.home.absolute()),
        "DAGSTER_HOME": str(dagster_home(settings)),
        # Else a backfill fails for good when the daemon finds the code server away.
        "DAGSTER_BACKFILL_RETRY_DEFINITION_CHANGED_ERROR": "1",
    }


def dagster_home(settings: Settings) -> Path:
    """The folder that holds the instance's `dagster.yaml`, schedules' state and compute logs; absolute."""
    return settings.home.absolute() / "dagster"


def home_is_current(settings: Settings) -> bool:
    """Whether the instance's home holds the `dagster.yaml` of this version."""
    path = dagster_home(settings) / "dagster.yaml"
    return path.is_file() and path.read_text("utf-8") == _configuration()


def write_home(settings: Settings) -> None:
    """Create the instance's home and put this version's `dagster.yaml` there."""
    home = dagster_home(settings)
    home.mkdir(parents=True, exist_ok=True)
    if not home_is_current(settings):
        # Renamed into place: a daemon that starts meanwhile reads the old file or the new one, never half of one.
        draft = home / f"dagster.yaml.{os.getpid()}"
        draft.write_text(_configuration(), "utf-8")
        draft.replace(home / "dagster.yaml")


def storage_is_current(instance: DagsterInstance) -> bool:
    """Whether Dagster's tables are at the revision that the installed Dagster needs."""
    revision, head = instance.event_log_storage.alembic_version() or (None, None)
    return revision == head


def unlimited_pools(instance: DagsterInstance, pools: Iterable[str] = POOLS) -> list[str]:
    """Those of `pools` whose limit nobody has set, so that it hangs on a default."""
    limited = {pool.name for pool in instance.event_log_storage.get_pool_limits() if not pool.from_default}
    return sorted(set(pools) - limited)


def end_runs_without_worker(instance: DagsterInstance) -> list[str]:
    """Fail the runs whose worker is known to be gone; returns their ids.

    As runs that crashed they are retried by the daemon, whose run monitoring would come to the same half a minute
    later. Runs of other hosts, and those whose workers outlived their daemon, are left alone.
    """
    launcher = instance.run_launcher
    return launcher.end_runs_without_worker() if isinstance(launcher, ProcessRunLauncher) else []


@contextmanager
def untouched(home: Path, databases: Databases) -> Iterator[DagsterInstance]:
    """The instance in `home`, without the tables that opening it would create."""
    url = databases.dagster.render_as_string(hide_password=False)
    storage = {"postgres": {"postgres_url": url, "should_autocreate_tables": False}}
    reference = InstanceRef.from_dir(str(home), overrides={"storage": storage})
    with DagsterInstance.from_ref(reference) as instance:
        yield instance


def _installed(settings: Settings, databases: Databases, asked: Preparing | None) -> Installation:
    engine = connect_engine(databases.ticketflow, "ticketflow bootstrap", connections=1)
    try:
        require_current_schema(engine)
        if asked is not None:
            adopt(engine, settings, account(), rehearsal=asked.rehearsal)
            # Who migrates a server for others need not deliver; nobody has said then where events go.
            adopt_routes(engine, settings, account(), unnamed=databases.embedded is not None)
        with engine.connect() as connection:
            return require_agreement(connection, settings)
    finally:
        engine.dispose()


def _require_storage(settings: Settings, databases: Databases) -> None:
    with untouched(dagster_home(settings), databases) as instance:
        if not storage_is_current(instance):
            raise PreconditionFailed(
                "Dagster's storage is not that of the installed Dagster; run `ticketflow migrate`."
            )


def _limit_pools(instance: DagsterInstance, pools: Iterable[str]) -> None:
    # A limit that somebody set stays: an operator pauses a pool with a limit of 0.
    for pool in unlimited_pools(instance, pools):
        instance.event_log_storage.set_concurrency_slots(pool, 1)


def _upgrade_storage(instance: DagsterInstance) -> None:
    if storage_is_current(instance):
        return
    try:
        instance.upgrade()
    except CommandError:
        raise PreconditionFailed(
            "Dagster's storage is ahead of the installed Dagster; upgrade ticketflow-orch to the version that used it."
        ) from None


def _configuration() -> str:
    return resources.files("ticketflow_orch.dagster_host").joinpath("dagster.yaml").read_text("utf-8")
