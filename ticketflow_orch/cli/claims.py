"""`ticketflow claims`: who holds which piece of scheduled work, and taking it from a holder that will never finish."""

from __future__ import annotations

from typing import Annotated

import typer

from ticketflow_orch.cli.options import AsJson

app = typer.Typer(help="Show claims on scheduled work, and take one from its holder.", no_args_is_help=True)


@app.command("list")
def list_(
    job: Annotated[str | None, typer.Option(help="Only this job's.")] = None,
    stale: Annotated[bool, typer.Option("--stale", help="Only those whose holder let the lease end.")] = False,
    *,
    as_json: AsJson = False,
) -> None:
    """List the last 50 claims, the newest first."""
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.cli.terminal import json_lines, moment, plain_table
    from ticketflow_orch.jobs.claims import executions, stale_claims

    with database("claims") as engine, engine.connect() as connection:
        if stale:
            found = tuple(claim for claim in stale_claims(connection) if job in {None, claim.job})
        else:
            found = executions(connection, job)
    if as_json:
        json_lines(found)
        return
    if not found:
        typer.echo("No claim is stale." if stale else "There is no claim.")
        return
    plain_table(
        ("job", "key", "state", "attempt", "owner", "heartbeat (UTC)", "lease until (UTC)"),
        (
            (
                claim.job,
                claim.key,
                claim.state,
                str(claim.attempt),
                claim.owner,
                moment(claim.heartbeat_at),
                moment(claim.lease_until),
            )
            for claim in found
        ),
    )


@app.command("release")
def release(
    job: Annotated[str, typer.Argument(help="As `claims list` shows it.")],
    key: Annotated[str, typer.Argument(help="As `claims list` shows it.")],
) -> None:
    """Take a claim from its holder, so that the next run does the work; the holder can no longer finish it."""
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.db.engine import transaction
    from ticketflow_orch.jobs import claims

    with database("claims") as engine, transaction(engine) as connection:
        claims.release(connection, job, key)
    typer.echo(f"The claim ({job}, {key}) is released; the next run of that window does the work.")
