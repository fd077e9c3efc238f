"""`ticketflow late`: what came late, and what it changed."""

from __future__ import annotations

from typing import Annotated

import typer


def late(
    month: Annotated[str | None, typer.Option(metavar="YYYY-MM", help="Only what was posted in this month.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="How many to list.")] = 100,
) -> None:
    """List what came late: what is not posted yet, then the adjustments, with the net before and after.

    What `ticketflow status` counts as late is what is not posted yet, by organization.
    """
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.cli.terminal import note_unlisted, plain_table
    from ticketflow_orch.formatting.money import written_out
    from ticketflow_orch.months import Month
    from ticketflow_orch.settlement.late_report import late_adjustments, late_money

    asked = None if month is None else Month.parse(month)
    with database("late") as engine, engine.connect() as connection:
        waiting = late_money(connection, asked, limit)
        found = late_adjustments(connection, asked, limit)
    if waiting:
        typer.echo("Not posted yet, but by the next settlement of the month in the second column:")
        plain_table(
            ("organization", "to be posted in", "about", "currency", "movements", "gross"),
            (
                (
                    one.external_ref,
                    str(one.posted_in),
                    str(one.origin),
                    one.currency,
                    f"{one.movements:,}",
                    written_out(one.amount, one.exponent),
                )
                for one in waiting
            ),
        )
        note_unlisted(waiting[0].altogether - len(waiting))
        typer.echo()
    if not found.listed:
        if not waiting:
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
    note_unlisted(found.more, "name a --month, or a larger --limit")
