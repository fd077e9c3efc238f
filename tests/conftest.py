"""A real Postgres for every test: one cluster per server version, a fresh copy of a migrated template per test."""

from __future__ import annotations

import functools
import gc
import importlib
import os
import random
import shutil
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import hypothesis
import psutil
import pytest
import typer.testing
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, text
from sqlalchemy.engine import URL

from tests.chaos.small_disk import can_mount
from tests.end_to_end.browser import installed
from tests.support.provider import Provider
from tests.support.silence import can_cut
from ticketflow_orch.db.engine import connect_engine
from ticketflow_orch.db.migrate import migrate
from ticketflow_orch.installation.agreed_routes import adopt_routes
from ticketflow_orch.installation.deciding import adopt
from ticketflow_orch.local.postgres import DEFAULT_PARAMETERS, EmbeddedServer
from ticketflow_orch.settings import Settings

# What the suite keeps on disk must be reachable by the account that runs Postgres when we are root.
DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")
SERVERS = {"postgres18": None} | ({"postgres15": DEBIAN_15} if DEBIAN_15.is_dir() else {})
# Sets a server's clock wrong; in the folder of the machine's architecture.
FAKETIME = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)
TEMPLATE = "template_ticketflow"
LONGEST = ("test_guide", "test_outages")
MEMORY = Path("/dev/shm")

# The suite depends on no variable of its caller, and on no demo in the folder where it runs: this one is empty.
# Its partitions reach back to the oldest real data.
for variable in [name for name in os.environ if name.startswith(("TICKETFLOW_", "DAGSTER_", "PG"))]:
    del os.environ[variable]
os.environ["TICKETFLOW_HOME"] = str(Path(tempfile.gettempdir(), f"tf-nobody-{os.getpid()}"))
os.environ["TICKETFLOW_FIRST_MONTH"] = "2014-10"
# One seed for the whole run, however many processes share it.
os.environ.setdefault("CHAOS_SEED", str(random.randrange(10**6)))
# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile("suite", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("suite")
# As in a process that runs one command, the command is assembled once.
typer.testing._get_command = functools.cache(typer.testing._get_command)


def _loaded_once(load: Callable[[Config], ScriptDirectory]) -> Callable[[Config], ScriptDirectory]:
    """Load the revisions of a folder once: Dagster asks for the newest of its own with each run that writes a file."""
    loaded: dict[str | None, ScriptDirectory] = {}

    def revisions(config: Config) -> ScriptDirectory:
        folder = config.get_main_option("script_location")
        if folder not in loaded:
            loaded[folder] = load(config)
        return loaded[folder]

    return revisions


ScriptDirectory.from_config = _loaded_once(ScriptDirectory.from_config)


def pytest_report_header() -> str:
    absent = {
        "Postgres 15": "postgres15" not in SERVERS,
        "Chromium": installed() is None,
        "libfaketime": FAKETIME is None,
        "LibreOffice": shutil.which("soffice") is None,
        "PgBouncer": not Path("/usr/sbin/pgbouncer").exists(),
        "nginx": not Path("/usr/sbin/nginx").exists(),
        "DuckDB": find_spec("duckdb") is None,
        "leave to drop packets": not can_cut(),
        "leave to mount a disk": not can_mount(),
    }
    here = f"servers under test: {', '.join(SERVERS)}; CHAOS_SEED={os.environ['CHAOS_SEED']}"
    return here + "".join(f"; no {name} here" for name in absent if absent[name])


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "every_server: run on each Postgres version found here")
    config.addinivalue_line("markers", "fast: needs no server; what `make test-fast` runs")


def pytest_collection(session: pytest.Session) -> None:
    """Let each of the processes begin with other files: all load every one, and each needs to be compiled only once."""
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    modules = sorted(session.config.rootpath.glob("tests/**/test_*.py")) if processes > 1 else []
    first = len(modules) * number // processes
    for module in modules[first:] + modules[:first]:
        # What cannot be loaded is reported when it is collected.
        with suppress(Exception):
            importlib.import_module(".".join(module.relative_to(session.config.rootpath).with_suffix("").parts))


def pytest_collection_finish() -> None:
    """What has been loaded stays: the collector need not walk a million objects again and again."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is fast, and spread the files of back offices over the first two thirds of the run, the longest first.

    A back office costs a fifth of a processor while its test waits: beside other tests it is soon done, beside its
    like all of them wait for each other.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        if not {"clusters", "scratch"} & set(item.fixturenames) and "end_to_end" not in item.path.parts:
            item.add_marker("fast")
        files.setdefault(item.path, []).append(item)
    offices = sorted(
        (path for path in files if "end_to_end" in path.parts or path.stem in LONGEST),
        key=lambda path: path.stem not in LONGEST,
    )
    others = [path for path in files if path not in offices]
    distance = len(others) * 2 // 3 // max(len(offices), 1)
    for number, office in enumerate(offices):
        others.insert(number * (distance + 1), office)
    items[:] = [item for path in others for item in files[path]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "server" in metafunc.fixturenames:
        every = metafunc.definition.get_closest_marker("every_server") is not None
        metafunc.parametrize("server", list(SERVERS) if every else ["postgres18"], indirect=True, scope="session")


@pytest.fixture(scope="session")
def scratch() -> Iterator[Path]:
    """A short folder that other accounts can reach, for clusters and their sockets."""
    folder = Path(tempfile.mkdtemp(prefix="tf-", dir=MEMORY if _is_plenty(MEMORY) else None))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def _is_plenty(memory: Path) -> bool:
    """Whether a folder in memory is there and has room for all clusters.

    Each test has a database of its own, which is hundreds of files; many a disk makes them slower than the test runs.
    """
    if not os.access(memory, os.W_OK | os.X_OK):
        return False
    return min(shutil.disk_usage(memory).free, psutil.virtual_memory().available) > 8 * 2**30


@pytest.fixture(scope="session")
def clusters(scratch: Path) -> Iterator[Callable[[str], EmbeddedServer]]:
    """Starts the cluster of a version when it is first asked for; each runs until the end.

    A fixture with a parameter is made anew whenever the version changes, which is twice in most files.
    """
    started: dict[str, EmbeddedServer] = {}
    # Autovacuum is a session that comes when it likes, and holds locks and snapshots that some tests count.
    parameters = {
        **DEFAULT_PARAMETERS,
        "fsync": "off",
        "max_wal_size": "256MB",
        "max_connections": "200",
        "autovacuum": "off",
    }

    def cluster(version: str) -> EmbeddedServer:
        if version not in started:
            server = EmbeddedServer(scratch / version, SERVERS[version], parameters)
            server.start()
            make_template(server)
            started[version] = server
        return started[version]

    yield cluster
    for server in started.values():
        server.remove()


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest, clusters: Callable[[str], EmbeddedServer]) -> EmbeddedServer:
    """A running cluster, with a migrated template database."""
    return clusters(request.param)


@pytest.fixture
def url(server: EmbeddedServer) -> Iterator[URL]:
    """The URL of a fresh, migrated database."""
    with fresh_database(server) as url:
        yield url


@pytest.fixture
def engine(url: URL) -> Iterator[Engine]:
    """An engine on a fresh, migrated database."""
    engine = connect_engine(url, f"pytest {os.getpid()}", connections=20)
    yield engine
    engine.dispose()


@pytest.fixture
def start_provider(tmp_path: Path) -> Iterator[Callable[..., Provider]]:
    """Starts payment providers, each with books of its own; they are gone in the end."""
    started: list[Provider] = []

    def start(**options: float) -> Provider:
        started.append(Provider(tmp_path / f"provider-{len(started)}.jsonl", **options))
        started[-1].start()
        return started[-1]

    yield start
    for provider in started:
        provider.kill()


@pytest.fixture(autouse=True)
def forgotten_instances() -> Iterator[None]:
    """Dagster 1.13 keeps pointing at an instance that was entered twice, and later ones ask one that is gone."""
    yield
    if "dagster" in sys.modules:
        importlib.import_module("dagster._core.storage.defs_state.base")._current_storage.set(None)


@contextmanager
def fresh_database(server: EmbeddedServer, template: str = TEMPLATE) -> Iterator[URL]:
    """The URL of a copy of `template`, which is gone when the block ends."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    administrator = _administrator(server.url())
    _execute(administrator, f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
    try:
        yield server.url(name)
    finally:
        _execute(administrator, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def make_template(server: EmbeddedServer) -> None:
    """A migrated database that tests copy, which has what the environment says, and pays from the first month on."""
    run_sql(server.url(), f"CREATE DATABASE {TEMPLATE}")
    migrate(server.url(TEMPLATE))
    engine = connect_engine(server.url(TEMPLATE), "pytest setup", connections=1)
    decided = Settings(payouts_from=os.environ["TICKETFLOW_FIRST_MONTH"])
    adopt(engine, decided, "the suite")
    adopt_routes(engine, decided, "the suite")
    engine.dispose()


def run_sql(url: URL, statement: str) -> None:
    """Run one statement outside a transaction, in a session of its own."""
    engine = connect_engine(url, "pytest setup", connections=1)
    _execute(engine, statement)
    engine.dispose()


@functools.cache
def _administrator(url: URL) -> Engine:
    """The session that makes and drops databases: opening one for each costs more than either."""
    return connect_engine(url, "pytest setup", connections=1)


def _execute(engine: Engine, statement: str) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(statement))
