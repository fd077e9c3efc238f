"""`ticketflow migrate`: what a deployment runs once before its processes start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ticketflow_orch.dagster_host.instance import Instance


def migrate(
    rehearsal: Annotated[
        bool, typer.Option("--rehearsal", help="A new database, in which business time may run ahead of its clock.")
    ] = False,
) -> None:
    """Bring both databases, the Dagster instance and its pools to this version. Safe to repeat, also at once.

    The first time, what decides about money is taken over from the environment: `ticketflow installation` shows it.
    """
    from ticketflow_orch.dagster_host.instance import Preparing, running
    from ticketflow_orch.installation.agreed_routes import FIX
    from ticketflow_orch.settings import settings

    with running(settings(), asked=Preparing(own_server=True, rehearsal=rehearsal)) as instance:
        typer.echo("The schema was brought up to date." if instance.migrated else "The schema is up to date.")
        undecided, differences = _other_routes(instance)
    # Who migrates need not deliver, so a host without a file of routes says nothing about those of others.
    if differences and (settings().delivery is not None or undecided):
        typer.echo(f"Nothing will be delivered with these routes: {'; '.join(differences)}; {FIX}.", err=True)


def _other_routes(instance: Instance) -> tuple[bool, tuple[str, ...]]:
    """Whether the database has no routes yet, and how those of this host differ from what it has."""
    from ticketflow_orch.db.engine import connect_engine
    from ticketflow_orch.db.installation import read_installation
    from ticketflow_orch.installation.agreed_routes import routes_changed
    from ticketflow_orch.outbox.delivery.configuration import read_routes
    from ticketflow_orch.settings import settings

    engine = connect_engine(instance.databases.ticketflow, "ticketflow migrate", connections=1)
    try:
        with engine.connect() as connection:
            digest = read_installation(connection).routes_digest
            return digest is None, routes_changed(digest, read_routes(settings()))
    finally:
        engine.dispose()
