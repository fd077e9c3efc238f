"""`ticketflow demo`: a year of a platform's life, settled before your eyes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from ticketflow_orch.months import Month
    from ticketflow_orch.settlement.report import MonthTotal


def demo(
    organizations: Annotated[int, typer.Option(min=10, help="How many organizations the data set has.")] = 400,
    months: Annotated[int, typer.Option(min=1, max=120, help="How many months it spans.")] = 12,
) -> None:
    """Load a demo data set that ends with the last full month, settle every month that is over, print the statement.

    Repeating it changes nothing and says so.
    """
    from ticketflow_orch.cli.month_runs import settle_months
    from ticketflow_orch.cli.session import instance_and_database
    from ticketflow_orch.cli.settle import report
    from ticketflow_orch.cli.terminal import console, rows_shown
    from ticketflow_orch.clock import now
    from ticketflow_orch.demo_data import load_demo
    from ticketflow_orch.errors import InputError
    from ticketflow_orch.months import Month, months_between
    from ticketflow_orch.settings import settings
    from ticketflow_orch.settlement.due import months_over

    out = console()
    business_now = now(settings().fixed_clock)
    # The month before last is over in every zone on earth, whatever hour it is here.
    last = Month.of_instant(business_now, "Pacific/Pago_Pago").previous()
    first = Month.parse(settings().first_month)
    partitions = len(list(months_between(first, last)))
    if months > partitions:
        raise InputError(f"{first} to {last} are {partitions} months, not {months}; set TICKETFLOW_FIRST_MONTH.")
    with instance_and_database("demo") as engine:
        with rows_shown() as progress:
            loaded = load_demo(engine, last, months=months, organizations=organizations, progress=progress)
        out.print(str(loaded))
        with engine.connect() as connection:
            over = months_over(connection, business_now, first)
        runs = list(settle_months(engine, over, tags={"ticketflow/demo": "true"}))
        green = [report(run) for run in runs].count(False) == 0
        if over:
            print_statement(engine, over[0], over[-1])
        new, adjusted = sum(run.rows_new for run in runs), sum(run.rows_adjusted for run in runs)
        out.print(f"\n{len(runs)} months: {new:,} new rows, {adjusted:,} adjusted.", highlight=False)
        if new == adjusted == 0 and green:
            out.print("Everything had been settled before: this run changed nothing.")
    out.print("\nNext: [bold]make ui[/bold] opens it in Dagster at http://127.0.0.1:3000.")
    raise typer.Exit(0 if green else 1)


def print_statement(engine: Engine, first: Month, last: Month) -> None:
    """Print what was posted from `first` to `last`: by month and currency, then the top organizations."""
    from rich.table import Table

    from ticketflow_orch.cli.terminal import console
    from ticketflow_orch.money import written_out
    from ticketflow_orch.settlement.report import month_totals, top_organizations

    with engine.connect() as connection:
        totals = month_totals(connection, first, last)
        top = top_organizations(connection, first, last, limit=3)
    out = console()
    table = Table("month", "currency", box=None, pad_edge=False, header_style="bold")
    for column in ("organizations", "captures", "refunds", "commission", "tax", "net"):
        table.add_column(column, justify="right")
    previous = None
    for total in totals:
        table.add_row("" if total.month == previous else str(total.month), total.currency, *_cells(total))
        previous = total.month
    out.print("\n[bold]Settled, by month and currency[/bold]")
    out.print(table)
    best = Table("currency", "organization", "name", box=None, pad_edge=False, header_style="bold")
    for column in ("captures", "refunds", "commission", "net"):
        best.add_column(column, justify="right")
    for item in top:
        amounts = (item.captures, item.refunds, item.commission, item.net)
        best.add_row(
            item.currency, item.external_ref, item.name, *(written_out(amount, item.exponent) for amount in amounts)
        )
    out.print(f"\n[bold]Top organizations, {first} to {last}[/bold]")
    out.print(best)


def _cells(total: MonthTotal) -> list[str]:
    from ticketflow_orch.money import written_out

    amounts = (total.captures, total.refunds, total.commission, total.commission_tax, total.net)
    return [f"{total.organizations:,}", *(written_out(amount, total.exponent) for amount in amounts)]
