"""`ticketflow migrate`: what a deployment runs once before its processes start."""

from __future__ import annotations

import typer


def migrate() -> None:
    """Bring both databases, the Dagster instance and its pools to this version. Safe to repeat, also at once."""
    from ticketflow_orch.instance import running
    from ticketflow_orch.settings import settings

    with running(settings()) as instance:
        typer.echo("The schema was brought up to date." if instance.migrated else "The schema is up to date.")
