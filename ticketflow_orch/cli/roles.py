"""`ticketflow roles`: the four group roles of a server of one's own, set up or compared."""

from __future__ import annotations

from typing import Annotated

import typer

from ticketflow_orch.cli.exit_codes import FAILED


def roles(
    check: Annotated[
        bool, typer.Option("--check", help="Say what a role lacks or may do beyond what it needs, and change nothing.")
    ] = False,
) -> None:
    """Set up the roles of owner, runs, relay and analysts, as the owner of the schema; again after each migration.

    All in one transaction; a second time changes nothing. Logins are made members by you: GRANT ticketflow_run TO me.
    """
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.db.roles import role_faults, set_up_roles

    with database("roles", agreeing=False) as engine:
        if check:
            with engine.connect() as connection:
                faults = role_faults(connection)
            for fault in faults:
                typer.echo(fault)
            if faults:
                typer.echo("`ticketflow roles` sets them up, as the owner of the schema.", err=True)
                raise typer.Exit(FAILED)
            typer.echo("Every role has what it needs, and no more.")
            return
        changes = set_up_roles(engine)
    for verb, what in (("made", changes.made), ("now:", changes.granted), ("no more:", changes.revoked)):
        for one in what:
            typer.echo(f"{verb} {one}")
    typer.echo("The roles are set up." if changes.count else "The roles were set up already; nothing was changed.")
    if changes.left:
        for fault in changes.left:
            typer.echo(fault, err=True)
        typer.echo(
            "Somebody else granted that, to everybody or to a role that this one is a member of; REVOKE it there.",
            err=True,
        )
        raise typer.Exit(FAILED)
