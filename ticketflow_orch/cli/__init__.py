"""The command `ticketflow`: one module of this package per command or group of commands, assembled here.

A module defines its function and imports what it needs *inside* it: whoever asks for `--help` does not wait for
Dagster. To add a command, write its module and register the function below.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import sys
from collections.abc import Callable, Sequence
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
    settle,
    statement,
    status,
    ui,
    work,
)
from ticketflow_orch.errors import InterruptedRunError, InvalidInput, TicketflowError
from ticketflow_orch.formatting.text import is_text

FAILED = 1
REFUSED = 2
INTERRUPTED = 130
# What a disk refuses is no fault of the program, whichever file it is about.
_FULL = {
    errno.ENOSPC: "make room on that disk",
    errno.EDQUOT: "make room for this account on that disk",
}
_CLOSED = {
    errno.EACCES: "let this account in there, or set TICKETFLOW_HOME to a folder of its own",
    errno.EPERM: "let this account in there, or set TICKETFLOW_HOME to a folder of its own",
    errno.EROFS: "set TICKETFLOW_HOME to a folder that can be written to",
    errno.EEXIST: "set TICKETFLOW_HOME to a folder",
    errno.ENOTDIR: "set TICKETFLOW_HOME to a folder",
}

# An option, and nothing after its equals sign.
_NOTHING_GIVEN = re.compile(r"--[a-z-]+=\s*")


app = typer.Typer(
    name="ticketflow",
    help="The back office of a ticketing platform: monthly settlement on Dagster and Postgres.",
    epilog="Exit codes: 0 done; 1 work failed, such as a month that is red; 2 input refused, nothing written; "
    "130 interrupted. Settings are TICKETFLOW_ variables; `ticketflow doctor` shows them.",
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


def main() -> None:
    """The console script. A refused input is one line on stderr, whichever command raised it."""
    try:
        _refuse_unreadable(sys.argv[1:])
        command()()
    except TicketflowError as error:
        # Further lines are lists that the command has shown as a table.
        typer.echo(f"error: {str(error).splitlines()[0]}", err=True)
        sys.exit(error.exit_code)
    except InterruptedRunError:
        again = " ".join(["ticketflow", *sys.argv[1:]])
        typer.echo(
            f"Interrupted. What is done stays, and nothing is done twice; `{again}` goes on from there.", err=True
        )
        sys.exit(INTERRUPTED)
    except OSError as error:
        fix = (_FULL | _CLOSED).get(error.errno or 0)
        if fix is None:
            raise
        typer.echo(f"error: {error.filename or 'a file'}: {error.strerror}; {fix}.", err=True)
        sys.exit(FAILED if error.errno in _FULL else REFUSED)
    except Exception as error:
        from ticketflow_orch.db.errors import database_fault

        fault = database_fault(error)
        if fault is None:
            raise
        typer.echo(f"error: {fault.sentence}", err=True)
        sys.exit(REFUSED if fault.is_refusal else FAILED)


def _refuse_unreadable(arguments: Sequence[str]) -> None:
    """Raise TicketflowError for what names nothing: bytes of another encoding, or nothing at all."""
    for argument in arguments:
        if not argument.strip() or _NOTHING_GIVEN.fullmatch(argument):
            raise InvalidInput(
                f"The argument {argument!r} says nothing, most likely for a variable of the shell that is not set; "
                "fill it in, or leave it out."
            )
        if not is_text(argument):
            raise InvalidInput(f"The argument {argument!a} is not UTF-8; write it in that encoding.")
