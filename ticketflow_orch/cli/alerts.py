"""`ticketflow alerts`: what was alerted and stands, and what a person says is over."""

from __future__ import annotations

from typing import Annotated

import typer

from ticketflow_orch.cli.options import AsJson, By
from ticketflow_orch.local.account import account

app = typer.Typer(
    help="What was alerted and stands: one line for each subject, however often it occurred.", no_args_is_help=True
)


@app.command("list")
def list_(
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="With --all: how many.")] = 100,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Also those that are over, the newest first.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the alerts that are open, the most urgent first."""
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.cli.terminal import json_lines, moment, plain_table
    from ticketflow_orch.outbox.alerts import latest, standing

    with database("alerts") as engine, engine.connect() as connection:
        found = latest(connection, limit) if everything else standing(connection)
    if as_json:
        json_lines(found)
        return
    if not found:
        typer.echo("No alert is open.")
        return
    plain_table(
        ("id", "severity", "kind", "about", "since (UTC)", "last (UTC)", "times", "over"),
        (
            (
                str(one.id),
                one.severity.lower(),
                one.kind,
                one.subject,
                moment(one.first_at),
                moment(one.last_at),
                f"{one.occurrences:,}",
                "" if one.resolved_at is None else f"{moment(one.resolved_at)}, {one.resolved_by}",
            )
            for one in found
        ),
    )


@app.command("resolve")
def resolve(
    alert: Annotated[int, typer.Argument(metavar="ID", help="As `list` shows it.")],
    by: By = None,
) -> None:
    """Say that an alert is over, where nothing else shows it; what occurs after that is alerted anew."""
    from ticketflow_orch import clock
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.db.engine import transaction
    from ticketflow_orch.formatting.counts import counted
    from ticketflow_orch.outbox.alerts import resolve_by_hand
    from ticketflow_orch.settings import settings

    with database("alerts") as engine, transaction(engine) as connection:
        ended = resolve_by_hand(connection, alert, clock.now(settings().fixed_clock), by or account())
    typer.echo(f"{ended.kind} {ended.subject} is over, after {counted(ended.occurrences, 'time')}.")
