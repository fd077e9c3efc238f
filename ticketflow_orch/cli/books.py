"""`ticketflow close` and `books`: months closed through Dagster, so that books and UI agree, and what they say."""

from __future__ import annotations

from typing import Annotated

import typer

from ticketflow_orch.cli.exit_codes import DONE, FAILED
from ticketflow_orch.cli.month_range import FirstMonth, LastMonth, OneMonth, named_months
from ticketflow_orch.cli.options import By
from ticketflow_orch.cli.terminal import console
from ticketflow_orch.local.account import account


def close(
    month: OneMonth = None,
    first: FirstMonth = None,
    last: LastMonth = None,
    by: By = None,
) -> None:
    """Close the books of a settled month for good, or of all from --from to --to, in order, in one run.

    Exit code 1 when a month is refused, or a check is red.
    """
    from ticketflow_orch.cli.session import instance_and_database

    months = named_months("close", month, first, last)
    with instance_and_database("close") as engine:
        # It loads the code location, which then has the months of the database.
        from ticketflow_orch.cli.month_runs import close_months, require_over

        require_over(engine, months)
        run = close_months(months, {"user": by or account()})
    out = console()
    for said in run.said:
        out.print(said.replace("**", ""), markup=False)
    if not run.succeeded:
        out.print(f"[red]{months[0] if len(months) == 1 else 'The run'} failed:[/red] {run.why}", soft_wrap=True)
    for check in run.red_checks:
        out.print(f"        [red]check {check}[/red]")
    raise typer.Exit(DONE if run.succeeded and not run.red_checks else FAILED)


def books(
    first: Annotated[str | None, typer.Option("--from", metavar="YYYY-MM", help="The first month to show.")] = None,
    last: Annotated[str | None, typer.Option("--to", metavar="YYYY-MM", help="The last month to show.")] = None,
) -> None:
    """Show what the closed months say, by currency: what was carried in, what is paid, what is carried on."""
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.cli.terminal import plain_table
    from ticketflow_orch.closing.columns import BALANCES
    from ticketflow_orch.closing.queries import balance_totals
    from ticketflow_orch.formatting.columns import cells, header
    from ticketflow_orch.months import Month

    since, until = Month.parse(first or "1970-01"), Month.parse(last or "9998-12")
    with database("books") as engine, engine.connect() as connection:
        totals = balance_totals(connection, since, until)
    if not totals:
        typer.echo("No such month is closed.")
        return
    plain_table(header(BALANCES), ([str(cell) for cell in cells(BALANCES, total)] for total in totals))
