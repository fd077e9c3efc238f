"""`ticketflow settle`: months through Dagster, so that ledger and UI agree."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ticketflow_orch.cli.exit_codes import DONE, FAILED
from ticketflow_orch.cli.month_range import FirstMonth, LastMonth, OneMonth, named_months
from ticketflow_orch.cli.terminal import console
from ticketflow_orch.errors import InvalidInput

if TYPE_CHECKING:
    from ticketflow_orch.cli.month_runs import MonthRun
    from ticketflow_orch.months import Month
    from ticketflow_orch.settlement.preview import DryRun


def settle(
    month: OneMonth = None,
    first: FirstMonth = None,
    last: LastMonth = None,
    *,
    full: Annotated[
        bool, typer.Option("--full", help="Recompute everybody, not only who can have changed since the last time.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be posted; post nothing.")] = False,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="PATH", help="With --dry-run: write all of it there, as CSV.")
    ] = None,
) -> None:
    """Settle a month, or all months from --from to --to, one run each. Repeating it posts only what came late.

    A repeat looks only at who can have changed; with --full it recomputes everybody, closed months included. With
    --dry-run a month is not settled: what a settlement would post now is shown, and nothing is written.

    Exit code 1 when a month failed, has parked organizations, or a check is red. What Ctrl-C interrupts is neither lost
    nor posted twice: the same command continues from there.
    """
    from ticketflow_orch.cli.session import instance_and_database

    months = named_months("settle", month, first, last)
    if file is not None and not (dry_run and month):
        raise InvalidInput(f"The file {file} is for the dry run of one month: `ticketflow settle 2026-03 --dry-run`.")
    if dry_run:
        for one in months:
            _rehearse(one, file)
        return
    green = True
    with instance_and_database("settle") as engine:
        # It loads the code location, which then has the months of the database.
        from ticketflow_orch.cli.month_runs import require_over, settle_months

        require_over(engine, months)
        for run in settle_months(engine, months, tags={}, full=full):
            green = report(run) and green
    raise typer.Exit(DONE if green else FAILED)


def _rehearse(month: Month, file: Path | None) -> None:
    from ticketflow_orch import clock, months
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.settings import settings
    from ticketflow_orch.settlement.preview import dry_run

    with database("settle --dry-run") as engine:
        rehearsed = dry_run(
            engine,
            month,
            now=clock.now(settings().fixed_clock),
            first_month=months.Month.parse(settings().first_month),
            chunk_size=settings().chunk_size,
            file=file,
        )
    _show(rehearsed)
    if file is not None:
        console().print(f"All {rehearsed.entries:,} entries are in {file}.", markup=False)


def _show(rehearsed: DryRun) -> None:
    from ticketflow_orch.cli.terminal import plain_table
    from ticketflow_orch.formatting.money import written_out

    out = console()
    out.print(f"{rehearsed.month} dry run: nothing was posted.")
    for name, month, why in rehearsed.would_be_parked:
        out.print(f"would be parked: {name} in {month}: {why}", markup=False)
    if not rehearsed.entries:
        out.print(rehearsed.why_nothing or "A settlement would post nothing.", soft_wrap=True)
        return
    out.print("\n[bold]A settlement would post[/bold]")
    plain_table(
        ("about", "currency", "net", "settlements", "adjustments"),
        (
            (
                str(total.origin),
                total.currency,
                written_out(total.net, total.exponent),
                f"{total.settlements:,}",
                f"{total.adjustments:,}",
            )
            for total in rehearsed.totals
        ),
    )
    out.print(f"\n[bold]The first {len(rehearsed.listed)} entries[/bold]")
    plain_table(
        ("organization", "about", "currency", "net before", "net then", "difference"),
        (
            (
                entry.external_ref,
                str(entry.origin),
                entry.currency,
                written_out(entry.posted, entry.exponent),
                written_out(entry.posted + entry.difference, entry.exponent),
                written_out(entry.difference, entry.exponent),
            )
            for entry in rehearsed.listed
        ),
    )
    if rehearsed.more:
        out.print(f"{rehearsed.more:,} more are not listed; --file PATH writes them all.")


def report(run: MonthRun) -> bool:
    """Print what came of one month in a line; returns whether all is well."""
    out = console()
    if not run.succeeded:
        out.print(f"[red]{run.month} failed:[/red] {run.why}", soft_wrap=True)
        return False
    if run.rows_new == run.rows_adjusted == 0:
        out.print(run.why_nothing or f"{run.month} nothing new: nothing came late, and nothing was posted")
    else:
        out.print(f"{run.month} settled: {run.rows_new:,} new rows, {run.rows_adjusted:,} adjusted")
    for check in run.red_checks:
        out.print(f"        [red]check {check}[/red]")
    return not run.red_checks
