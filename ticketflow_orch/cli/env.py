"""`ticketflow env`: the variables with which plain `dagster …` commands find the instance."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from ticketflow_orch.secret_variables import FILE

if TYPE_CHECKING:
    from ticketflow_orch.local.databases import Databases


class Process(StrEnum):
    """What is started with the variables; `docs/servers.md` says which process needs which."""

    WEBSERVER = "webserver"
    DAEMON = "daemon"
    CODE_SERVER = "code-server"
    RELAY = "relay"


_DAGSTER_ALONE = (Process.WEBSERVER, Process.DAEMON)


def env(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of export lines.")] = False,
    process: Annotated[
        Process | None,
        typer.Option("--for", help="Only what this process needs; webserver and daemon get Dagster's database alone."),
    ] = None,
) -> None:
    """Print the variables that make plain `dagster …` commands work here: eval "$(ticketflow env)".

    They hold the databases' passwords, and what the database has decided where it answers. Nothing is started: an
    embedded server needs `ticketflow db start`.
    """
    from ticketflow_orch.dagster_host.instance import environment, places, write_home
    from ticketflow_orch.local.databases import OURS, dagster_only, fault, resolve
    from ticketflow_orch.settings import settings

    if process in _DAGSTER_ALONE:
        variables = places(settings()) | dagster_only(settings())
        write_home(settings())
        _print(variables, as_json=as_json)
        return
    databases = resolve(settings())
    write_home(settings())
    variables = environment(settings(), databases)
    is_stopped = databases.embedded is not None and not databases.embedded.is_running()
    if not is_stopped and fault(databases.ticketflow, OURS) is None:
        variables |= _decided(databases)
    _print(variables, as_json=as_json)
    if is_stopped:
        typer.echo("The embedded Postgres is stopped; start it with `ticketflow db start`.", err=True)


def _print(variables: Mapping[str, str], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(variables, indent=2))
        return
    typer.echo("\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items()))
    # A variable and its file are refused together.
    for file in (f"{name}{FILE}" for name in variables if f"{name}{FILE}" in os.environ):
        typer.echo(f"unset {file}")


def _decided(databases: Databases) -> dict[str, str]:
    """What the code location needs of the database's row; nothing where the schema has none yet."""
    from ticketflow_orch.db.engine import connect_engine
    from ticketflow_orch.db.installation import read_installation, require_agreement
    from ticketflow_orch.db.migrate import require_current_schema
    from ticketflow_orch.errors import TicketflowError
    from ticketflow_orch.settings import settings

    engine = connect_engine(databases.ticketflow, "ticketflow env", connections=1)
    try:
        try:
            require_current_schema(engine)
            with engine.connect() as connection:
                read_installation(connection)
        except TicketflowError:
            return {}
        with engine.connect() as connection:
            return require_agreement(connection, settings()).environment
    finally:
        engine.dispose()
