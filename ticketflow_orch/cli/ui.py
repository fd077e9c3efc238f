"""`ticketflow ui`: the whole system on one machine, until Ctrl-C."""

from __future__ import annotations

import fcntl
import gc
import http.client
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Annotated

import typer

from ticketflow_orch.errors import Conflict, Unavailable
from ticketflow_orch.local.processes import Child, Children, listens, socket_folder

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from ticketflow_orch.dagster_host.daemons import DaemonMark
    from ticketflow_orch.local.databases import Databases
    from ticketflow_orch.settings import Settings

HOST = "127.0.0.1"
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# What the processes get to end in order, and then the embedded server; together with our own end well below five
# seconds. A run that needs longer to write down that it was interrupted is failed, and retried, by the next start.
_GRACE = 1.5
_PATIENCE = 1.5
_LONGEST_START = 180.0
_BETWEEN_LOOKS = 5.0
# The page of the asset that shows all months.
_BOARD = "/assets/months_board"


def ui(port: Annotated[int, typer.Option(min=1, max=65535, help="Where the web pages are served.")] = 3000) -> None:
    """Open the Dagster UI with all it needs: databases, code location, daemon, schedules. Ctrl-C ends it all.

    The processes write their logs below the home folder, in `logs/`.
    """
    from ticketflow_orch.settings import settings

    raise typer.Exit(serve(settings(), port))


def serve(settings: Settings, port: int, definitions: str = "ticketflow_orch.definitions") -> int:
    """Run webserver, daemon and one code server for both until a signal comes; returns the exit code.

    `definitions` is the module of the code location. 0 after a signal, 1 when a process ended by itself.

    Raises:
        Conflict: `ticketflow ui` already runs in this home, or another daemon works on the same databases.
        Unavailable: the port is taken, or a database cannot be reached.
    """
    from dagster import DagsterInstance

    from ticketflow_orch.dagster_host.instance import end_runs_without_worker, running

    _refuse_unusable(port)
    home = settings.home.absolute()
    with _alone(home) as lock, _interrupted_once(), running(settings, patience=_PATIENCE) as instance:
        _refuse_second_daemon(instance.databases)
        with DagsterInstance.get() as dagster:
            end_runs_without_worker(dagster)
        ending = _flag_for_signals()
        with (
            socket_folder() as scratch,
            # Dagster puts sockets of its own where temporary files lie.
            Children(
                home / "logs",
                {**os.environ, **instance.environment, "PYTHONUNBUFFERED": "1", "TMPDIR": str(scratch)},
                _GRACE,
            ) as children,
        ):
            watch = _Watch(children, ending)
            code = scratch / "code.sock"
            try:
                if _open(children, watch, port=port, definitions=definitions, code=code, home=home, lock=lock):
                    address = f"http://{HOST}:{port}"
                    typer.echo(f"TicketFlow is at {address}; Ctrl-C ends it. Logs: {settings.home / 'logs'}")
                    typer.echo(f"How far every month is: {address}{_BOARD}")
                    watch.until(lambda: False)
            except _ProcessError as error:
                typer.echo(error, err=True)
                return 1
            finally:
                # Else the interpreter looks through all of Dagster again before it ends: up to a second.
                gc.freeze()
    return 0


def _open(
    children: Children, watch: _Watch, *, port: int, definitions: str, code: Path, home: Path, lock: IO[str]
) -> bool:
    """Start the three processes and wait until the web pages answer; returns False when a signal came first."""
    workspace = home / "ui-workspace.yaml"
    location = {"grpc_server": {"socket": str(code), "location_name": "ticketflow"}}
    workspace.write_text(json.dumps({"load_from": [location]}), "utf-8")

    def start(name: str, *command: str) -> Child:
        # In `home`, not where we were started: the folder comes first on the module path, and an `assets` in it
        # would be taken for ours.
        return children.start(name, [sys.executable, "-m", *command], folder=home, keep_open=lock.fileno())

    code_server = start(
        "code-server",
        "dagster", "code-server", "start", "--socket", str(code), "--module-name", definitions,
        "--location-name", "ticketflow", "--use-python-environment-entry-point", "--log-level", "warning",
    )  # fmt: skip
    if not watch.until(lambda: listens(code), code_server):
        return False
    threading.Thread(target=_keep_code_loaded, args=(code_server, code, watch.ending), daemon=True).start()
    daemon = start("daemon", "dagster._daemon", "run", "--workspace", str(workspace))
    webserver = start(
        "webserver",
        "ticketflow_orch.dagster_host.webserver",
        "--host",
        HOST,
        "--port",
        str(port),
        "--workspace",
        str(workspace),
    )
    _write_down(lock, [os.getpid(), *(child.process.pid for child in (code_server, daemon, webserver))])
    return watch.until(lambda: _answers(port), webserver)


def _keep_code_loaded(code_server: Child, code: Path, ending: threading.Event) -> None:
    """Start the process anew that holds the code, where it has ended: the code server, its parent, does not."""
    import psutil

    from ticketflow_orch.dagster_host.dagster_internals import code_server as served_at

    while not ending.wait(_BETWEEN_LOOKS):
        # Whatever goes wrong, as where the code cannot be loaded, may be right at the next look.
        with suppress(Exception):
            children = psutil.Process(code_server.process.pid).children()
            if not any("grpc" in child.cmdline() for child in children if child.status() != psutil.STATUS_ZOMBIE):
                served_at(str(code)).reload_code(timeout=round(_LONGEST_START))


class _ProcessError(Exception):
    """A process ended by itself or does not come up; the message is for people."""


@dataclass(frozen=True, slots=True)
class _Watch:
    children: Children
    ending: threading.Event

    def until(self, condition: Callable[[], bool], awaited: Child | None = None) -> bool:
        """Wait until `condition` holds; returns False when a signal came first.

        Bounded when it is about the start of the child `awaited`, else for as long as people want.
        """
        deadline = time.monotonic() + _LONGEST_START
        while not condition():
            if self.ending.wait(0.1):
                return False
            self.children.keep_logs_small()
            ended = self.children.first_ended()
            if ended is not None:
                raise _ProcessError(
                    f"The {ended.name} ended by itself with code {ended.process.returncode}; {ended.log} ends with:\n"
                    f"{ended.last_words()}"
                )
            if awaited is not None and time.monotonic() > deadline:
                raise _ProcessError(
                    f"The {awaited.name} did not answer within {_LONGEST_START:.0f} s; see {awaited.log}."
                )
        return True


@contextmanager
def _alone(home: Path) -> Iterator[IO[str]]:
    """Hold the lock that one `ticketflow ui` per home has; its processes hold it too, as long as any of them lives.

    Raises:
        Conflict: another one has it.
    """
    home.mkdir(parents=True, exist_ok=True)
    with (home / "ui.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            own, *children = lock.read().split() or [""]
            pids = own if own and _lives(int(own)) else " ".join(children)
            raise Conflict(
                f"`ticketflow ui` already runs in {home}, and two daemons would run every schedule twice; "
                f"end it first{f' with `kill {pids}`' if pids else ''}."
            ) from None
        _write_down(lock, [os.getpid()])
        yield lock


def _refuse_second_daemon(databases: Databases) -> None:
    """Wait, where it is not certain whether another daemon still works, until it shows or could have shown.

    Raises:
        Conflict: it works, in another home or on another host.
    """
    from ticketflow_orch.dagster_host.daemons import BETWEEN_MARKS
    from ticketflow_orch.db.engine import connect_engine
    from ticketflow_orch.local.process_identity import Life

    engine = connect_engine(databases.dagster, "ticketflow ui", connections=1)
    known: dict[str, float] = {}
    try:
        while found := _recent_daemons(engine, BETWEEN_MARKS * 1.5):
            for daemon in found:
                if daemon.process.life == Life.LIVES or daemon.last > known.setdefault(daemon.id, daemon.last):
                    raise Conflict(
                        f"A daemon works on these databases already, {daemon.process}, and two would start every "
                        "schedule twice; end that one first."
                    )
            typer.echo(
                f"A daemon worked on these databases {found[0].age:.0f} s ago, {found[0].process}; waiting to see "
                "whether it still does.",
                err=True,
            )
            time.sleep(_BETWEEN_LOOKS)
    finally:
        engine.dispose()


def _recent_daemons(engine: Engine, within: float) -> list[DaemonMark]:
    from ticketflow_orch.dagster_host.daemons import working_daemons

    with engine.connect() as connection:
        return working_daemons(connection, within)


def _write_down(lock: IO[str], pids: Sequence[int]) -> None:
    lock.seek(0)
    lock.truncate()
    lock.write(" ".join(str(pid) for pid in pids))
    lock.flush()


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def _interrupted_once() -> Iterator[None]:
    """Make the first of the ending signals a KeyboardInterrupt, and let nothing disturb the clean-up after it."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for number in _ENDING:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = [signal.signal(number, interrupt) for number in _ENDING]
    try:
        yield
    finally:
        for number, handler in zip(_ENDING, before, strict=True):
            signal.signal(number, handler)


def _flag_for_signals() -> threading.Event:
    """From here on signals only set this flag, so that no child slips away between its start and its registration."""
    flag = threading.Event()
    for number in _ENDING:
        signal.signal(number, lambda _number, _frame: flag.set())
    return flag


def _refuse_unusable(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise Unavailable(
                f"Port {port} on {HOST} cannot be used ({error.strerror}); choose another with --port."
            ) from None


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", "/server_info")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
