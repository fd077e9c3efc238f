"""`ticketflow env`: the variables with which plain `dagster …` commands find the instance."""

from __future__ import annotations

import json
import shlex
from typing import Annotated

import typer


def env(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of export lines.")] = False,
) -> None:
    """Print the variables that make plain `dagster …` commands work here: eval "$(ticketflow env)".

    They hold the databases' passwords. Nothing is started: an embedded server needs `ticketflow db start`.
    """
    from ticketflow_orch.databases import resolve
    from ticketflow_orch.instance import environment, write_home
    from ticketflow_orch.settings import settings

    databases = resolve(settings())
    write_home(settings())
    variables = environment(settings(), databases)
    if as_json:
        typer.echo(json.dumps(variables, indent=2))
    else:
        typer.echo("\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items()))
    if databases.embedded is not None and not databases.embedded.is_running():
        typer.echo("The embedded Postgres is stopped; start it with `ticketflow db start`.", err=True)
