"""`ticketflow db`: the embedded Postgres, for those who run plain `dagster …` commands or psql."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(
    help="Start and stop the embedded Postgres, and print its URL.",
    no_args_is_help=True,
)


@app.command("start")
def start() -> None:
    """Start the embedded Postgres, bring it up to date, and let it run until `ticketflow db stop`."""
    from ticketflow_orch.dagster_host.instance import bootstrap
    from ticketflow_orch.local.databases import embedded, ensure_running
    from ticketflow_orch.settings import settings

    embedded(settings())
    bootstrap(settings(), ensure_running(settings()))
    typer.echo('The embedded Postgres runs until `ticketflow db stop`. For plain commands: eval "$(ticketflow env)"')


@app.command("stop")
def stop() -> None:
    """Stop the embedded Postgres, even while others use it."""
    from ticketflow_orch.local import databases
    from ticketflow_orch.settings import settings

    stopped = databases.stop(settings())
    typer.echo("The embedded Postgres is stopped." if stopped else "The embedded Postgres was not running.")


@app.command("url")
def url(
    dagster: Annotated[
        bool, typer.Option("--dagster", help="Dagster's storage instead of TicketFlow's tables.")
    ] = False,
) -> None:
    """Print the database's URL with its password, as libpq reads it: psql "$(ticketflow db url)"."""
    from ticketflow_orch.local.databases import resolve
    from ticketflow_orch.settings import settings

    databases = resolve(settings())
    chosen = databases.dagster if dagster else databases.ticketflow
    typer.echo(chosen.set(drivername="postgresql").render_as_string(hide_password=False))
