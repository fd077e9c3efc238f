"""All commands of `ticketflow`, assembled. To add one, write its module and register its function here.

A module of this package holds one command or one group of commands, and its functions import what they need *inside*
them: `--help` does not wait for Dagster. What several commands share is in `options`, `month_range`, `terminal` and
`session`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated

import typer

from ticketflow_orch.cli import (
    alerts,
    anomalies,
    audit,
    books,
    claims,
    currency,
    db,
    demo,
    doctor,
    effects,
    env,
    erase,
    explain,
    health,
    importing,
    installation,
    late,
    mail,
    metrics,
    migrate,
    outbox,
    parking,
    payouts,
    reservations,
    roles,
    settle,
    statement,
    status,
    ui,
    work,
)

app = typer.Typer(
    name="ticketflow",
    help="The back office of a ticketing platform: monthly settlement on Dagster and Postgres.",
    epilog="Exit codes: 0 done; 1 the work failed, such as a month that is red, or something does not answer or is "
    "busy; 2 refused, nothing written; 130 interrupted. Settings are TICKETFLOW_ variables; `ticketflow doctor` shows "
    "them.",
    no_args_is_help=True,
    # Its tracebacks print the values of local variables, and with them passwords.
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("demo")(demo.demo)
app.command("ui")(ui.ui)
app.command("settle")(settle.settle)
app.command("close")(books.close)
app.command("books")(books.books)
app.command("late")(late.late)
app.command("park")(parking.park)
app.command("unpark")(parking.unpark)
app.command("status")(status.status)
app.command("explain")(explain.explain)
app.command("statement")(statement.statement)
app.command("effects")(effects.effects)
app.command("audit")(audit.audit)
app.command("doctor")(doctor.doctor)
app.command("health")(health.health)
app.command("metrics")(metrics.metrics)
app.command("import")(importing.import_)
app.command("migrate")(migrate.migrate)
app.command("roles")(roles.roles)
app.command("env")(env.env)
app.command("erase")(erase.erase)
app.add_typer(installation.app, name="installation")
app.add_typer(alerts.app, name="alerts")
app.add_typer(anomalies.app, name="anomalies")
app.add_typer(payouts.app, name="payouts")
app.add_typer(currency.app, name="currency")
app.add_typer(reservations.app, name="reservations")
app.add_typer(claims.app, name="claims")
app.add_typer(outbox.app, name="outbox")
app.add_typer(mail.app, name="mail")
app.add_typer(work.app, name="work")
app.add_typer(db.app, name="db")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version("ticketflow-orch"))
        raise typer.Exit


@app.callback()
def options(
    _: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Options of the command as a whole."""
    # Before anything is done. Where none of them is set, nobody waits for what reads them.
    if any(name.upper().startswith("TICKETFLOW_") for name in os.environ):
        from ticketflow_orch.settings import unknown_variables

        for sentence in unknown_variables():
            typer.echo(f"warning: {sentence}", err=True)


@functools.cache
def command() -> Callable[[], object]:
    """The assembled command: typer reads the signatures of all functions for it, each time that it is asked."""
    return typer.main.get_command(app)
