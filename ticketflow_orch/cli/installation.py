"""`ticketflow installation`: what the database has decided about money, since when and by whom."""

from __future__ import annotations

from typing import Annotated

import typer

from ticketflow_orch.cli.options import By
from ticketflow_orch.local.account import account

app = typer.Typer(help="What decides about money in this database: show it, and change it with who and when.")
_FOLLOWS = {
    "business_timezone": "Schedules tick in it once all processes are started again; end backfills that are running "
    "first. Months end in each organization's own zone as before.",
    "first_month": "The months to choose from begin there once all processes are started again; end backfills that are "
    "running first.",
    "mail_from": "What was due since then and is not mailed yet is mailed by the next runs.",
    "auto_close": "The next tick of the schedule follows it.",
}


@app.callback(invoke_without_command=True)
def show(
    context: typer.Context,
    changes: Annotated[bool, typer.Option("--changes", help="List all changes that were ever made.")] = False,
) -> None:
    """Show what decides about money in this database: each value, since when, and who decided it."""
    if context.invoked_subcommand is not None:
        return
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.cli.terminal import moment, plain_table
    from ticketflow_orch.db import installation

    with database("installation", agreeing=False) as engine, engine.connect() as connection:
        installed = installation.read_installation(connection)
        made = installation.changes(connection)
    if changes:
        plain_table(
            ("when (UTC)", "what", "before", "after", "who", "as"),
            ((moment(one.at), one.name, one.before, one.after, one.by, one.role) for one in made),
        )
        return
    typer.echo(f"Installation {installed.id}" + (", made for rehearsals" if installed.rehearsal else ""))
    last = {one.name: one for one in made}
    plain_table(
        ("what", "value", "since (UTC)", "who"),
        (
            (name, installation.written(value), *((moment(one.at), one.by) if (one := last.get(name)) else ("", "")))
            for name, value in installed.values.items()
        ),
    )
    typer.echo("Routes:")
    typer.echo(installed.routes_digest or "none were named yet")


@app.command("set")
def set_(
    name: Annotated[str, typer.Argument(help="business_timezone, first_month, mail_from or auto_close.")],
    value: Annotated[str, typer.Argument(help="As its variable has it; `none` for mail_from: no statement is mailed.")],
    by: By = None,
) -> None:
    """Change one of them. Refused where it would leave months behind."""
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.installation.deciding import change

    with database("installation set", agreeing=False) as engine:
        before, after = change(engine, name, value, by or account())
    if before == after:
        typer.echo(f"{name} is {after} already.")
        return
    typer.echo(f"{name} is {after}; it was {before}. {_FOLLOWS[name]}")
    typer.echo(f"Where TICKETFLOW_{name.upper()} is set to something else, runs are refused until it is changed.")


@app.command("accept-routes")
def accept_routes(by: By = None) -> None:
    """Deliver by the file that TICKETFLOW_DELIVERY names here from now on, and say what is different."""
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.installation import agreed_routes
    from ticketflow_orch.outbox.delivery.configuration import read_routes
    from ticketflow_orch.settings import settings

    routes = read_routes(settings())
    with database("installation accept-routes", agreeing=False) as engine:
        differences = agreed_routes.accept_routes(engine, routes, by or account())
    for difference in differences:
        typer.echo(f"Accepted: {difference}.")
    if not differences:
        typer.echo("The database has these routes already.")
