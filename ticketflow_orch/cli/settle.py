"""`ticketflow settle`: months through Dagster, so that ledger and UI agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ticketflow_orch.cli.terminal import console
from ticketflow_orch.errors import InputError

if TYPE_CHECKING:
    from ticketflow_orch.cli.month_runs import MonthRun


def settle(
    month: Annotated[str | None, typer.Argument(metavar="[YYYY-MM]", help="The month to settle.")] = None,
    first: Annotated[str | None, typer.Option("--from", metavar="YYYY-MM", help="The first of several.")] = None,
    last: Annotated[str | None, typer.Option("--to", metavar="YYYY-MM", help="The last of several.")] = None,
) -> None:
    """Settle a month, or all months from --from to --to, one run each. Repeating it posts only what came late.

    Exit code 1 when a month failed, has parked organizations, or a check is red.
    """
    from ticketflow_orch.cli.month_runs import settle_months
    from ticketflow_orch.cli.session import instance_and_database
    from ticketflow_orch.months import Month, months_between

    if (month is None) == (first is None or last is None) or (month is not None and (first or last)):
        raise InputError("Name one month, or --from and --to; for example `ticketflow settle 2026-03`.")
    months = list(months_between(Month.parse(str(month or first)), Month.parse(str(month or last))))
    if not months:
        raise InputError(f"There is no month from {first} to {last}; turn the two around.")
    green = True
    with instance_and_database("settle") as engine:
        for run in settle_months(engine, months, tags={}):
            green = report(run) and green
    raise typer.Exit(0 if green else 1)


def report(run: MonthRun) -> bool:
    """Print what came of one month in a line; returns whether all is well."""
    out = console()
    if not run.succeeded:
        out.print(f"[red]{run.month} failed:[/red] {run.why}", soft_wrap=True)
        return False
    if run.rows_new == run.rows_adjusted == 0:
        out.print(f"{run.month} nothing new: 0 new rows, {run.rows_existing:,} as they should be")
    else:
        out.print(f"{run.month} settled: {run.rows_new:,} new rows, {run.rows_adjusted:,} adjusted")
    for check in run.red_checks:
        out.print(f"        [red]check {check}[/red]")
    return not run.red_checks
