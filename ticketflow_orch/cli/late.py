"""`ticketflow late`: what came late, and what it changed."""

from __future__ import annotations

from typing import Annotated

import typer


def late(
    month: Annotated[str | None, typer.Option(metavar="YYYY-MM", help="Only what was posted in this month.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="How many to list.")] = 100,
) -> None:
    """List late adjustments: whose, posted in which month, about which, and the net before and after."""
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.cli.terminal import plain_table
    from ticketflow_orch.late import late_adjustments
    from ticketflow_orch.money import written_out
    from ticketflow_orch.months import Month

    asked = None if month is None else Month.parse(month)
    with database("late") as engine, engine.connect() as connection:
        found = late_adjustments(connection, asked, limit)
    if not found.listed:
        typer.echo("Nothing came late." if asked is None else f"Nothing that came late was posted in {asked}.")
        return
    plain_table(
        ("organization", "posted in", "about", "currency", "net before", "net now", "difference"),
        (
            (
                one.external_ref,
                str(one.month),
                str(one.origin),
                one.currency,
                *(written_out(amount, one.exponent) for amount in (one.old, one.new, one.difference)),
            )
            for one in found.listed
        ),
    )
    if found.more:
        typer.echo(f"{found.more:,} more are not listed; name a --month, or a larger --limit.", err=True)
