"""`ticketflow anomalies`: movements that cannot all be right, and what people accept of them."""

from __future__ import annotations

from typing import Annotated

import typer

from ticketflow_orch.cli.options import By
from ticketflow_orch.local.account import account

app = typer.Typer(
    help="Movements that look wrong: what came back beyond what was taken, what was captured twice, and the like.",
    no_args_is_help=True,
)


@app.command("list")
def list_(
    organization: Annotated[str | None, typer.Option(metavar="REF", help="Only this organization's.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="How many to list.")] = 100,
    *,
    accepted: Annotated[bool, typer.Option("--accepted", help="Also what somebody has accepted.")] = False,
) -> None:
    """List what looks wrong and nobody has accepted yet, in the order in which it was recorded."""
    from ticketflow_orch import clock
    from ticketflow_orch.auditing import organization_members
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.cli.terminal import note_unlisted, plain_table
    from ticketflow_orch.formatting.money import written_out
    from ticketflow_orch.settings import settings
    from ticketflow_orch.settlement.anomalies import read_anomalies
    from ticketflow_orch.settlement.invariants import EVERYBODY

    with database("anomalies") as engine, engine.connect() as connection:
        members = EVERYBODY if organization is None else organization_members(connection, organization)
        now = clock.now(settings().fixed_clock)
        found = read_anomalies(connection, now, members=members, limit=limit, with_accepted=accepted)
    if not found.listed:
        typer.echo("No movement looks wrong.")
        return
    plain_table(
        ("organization", "movement", "amount in question", "what is wrong", "accepted by"),
        (
            (
                one.organization,
                one.reference,
                f"{written_out(one.questionable, one.exponent)} {one.currency}",
                one.what,
                one.accepted_by or "",
            )
            for one in found.listed
        ),
    )
    note_unlisted(found.count - len(found.listed))


@app.command("accept")
def accept(
    movements: Annotated[list[str], typer.Argument(metavar="MOVEMENT", help="Its reference, as `list` shows it.")],
    by: By = None,
) -> None:
    """Accept what looks wrong with movements and is right: it holds no payout any more until it becomes worse."""
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.db.engine import transaction
    from ticketflow_orch.formatting.counts import counted
    from ticketflow_orch.settlement import anomalies

    with database("anomalies") as engine, transaction(engine) as connection:
        closed = anomalies.accept(connection, movements, by or account())
    typer.echo(f"{counted(closed, 'question')} closed.")
