"""What `ticketflow demo` prints at its end: totals, a statement, and what is left to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from sqlalchemy import Engine

    from ticketflow_orch.months import Month

# The last month that is closed in docs/analysts.md, whose months follow from it.
GUIDE_MONTH = "2025-03"


def print_totals(engine: Engine, first: Month, last: Month) -> None:
    """Print what every month came to: a line a month, a column a currency; and who sold most."""
    from rich.table import Table

    from ticketflow_orch.cli.terminal import console
    from ticketflow_orch.formatting.money import written_out
    from ticketflow_orch.settlement.queries import month_totals, top_organizations

    with engine.connect() as connection:
        totals = month_totals(connection, first, last)
        top = top_organizations(connection, first, last, limit=1)
    nets = {(total.month, total.currency): written_out(total.net, total.exponent) for total in totals}
    currencies = sorted({total.currency for total in totals})
    table = Table("month", box=None, pad_edge=False, header_style="bold")
    for currency in currencies:
        table.add_column(currency, justify="right")
    for month in sorted({total.month for total in totals}):
        table.add_row(str(month), *(nets.get((month, currency), "") for currency in currencies))
    out = console()
    out.print("\n[bold]Net, by month and currency[/bold]")
    out.print(table)
    best = Table("currency", "organization", "name", box=None, pad_edge=False, header_style="bold")
    best.add_column("net", justify="right")
    for item in top:
        best.add_row(item.currency, item.external_ref, item.name, written_out(item.net, item.exponent))
    out.print("\n[bold]Top organizations[/bold]")
    out.print(best)
    out.print()


def print_statement(engine: Engine, month: Month) -> None:
    """Print the balance of the month's first top organization as its statement has it, and where the statement is."""
    from rich.table import Table

    from ticketflow_orch.cli.terminal import console
    from ticketflow_orch.formatting.columns import cells
    from ticketflow_orch.reports.explain import explain
    from ticketflow_orch.reports.explanation_columns import BALANCES
    from ticketflow_orch.settings import settings
    from ticketflow_orch.settlement.queries import top_organizations
    from ticketflow_orch.statements import StatementOptions, write_statement

    with engine.connect() as connection:
        best = top_organizations(connection, month, month, limit=1)[0]
        balances = explain(connection, best.external_ref, month).balances
    addresses = write_statement(engine, best.external_ref, month, StatementOptions.configured(settings()))
    shown = [column for column in BALANCES if column.name != "payout"]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in shown:
        table.add_column(column.name, justify="left" if column.kind == "text" else "right")
    for balance in balances:
        table.add_row(*(str(cell) for cell in cells(shown, balance)))
    out = console()
    out.print(f"\n[bold]Statement of {best.name} ({best.external_ref}) for {month}[/bold]")
    out.print(table)
    for address in addresses:
        out.print(address, soft_wrap=True)


def print_work(engine: Engine, now: datetime, first_month: Month, last_closed: Month) -> None:
    """Print what is left to be done, and by which commands; months as they are called here and in the guide."""
    from ticketflow_orch.cli.terminal import console, plain_table

    left = list(_work(engine, now, first_month, _following(last_closed)[-1]))
    if not left:
        return
    out = console()
    out.print("\n[bold]Left for you to do[/bold], step by step in docs/analysts.md")
    plain_table(("", "what", "by"), left)
    if str(last_closed) != GUIDE_MONTH:
        there, here = (", ".join(_following(month)) for month in (GUIDE_MONTH, last_closed))
        out.print(f"What that page calls {there} is {here} here.")


def _following(month: Month | str) -> list[str]:
    """The month, and those that are left to be settled after it."""
    from ticketflow_orch.demo_data.work import MONTHS_LEFT
    from ticketflow_orch.months import Month

    months = [Month.parse(str(month))]
    for _ in range(MONTHS_LEFT):
        months.append(months[-1].next())
    return [str(each) for each in months]


def _work(engine: Engine, now: datetime, first_month: Month, misread: str) -> Iterator[tuple[str, str, str]]:
    """Each piece of work that is left: where, what it is, the command that does it; `misread`: the month that fails."""
    import shlex
    from pathlib import Path

    from ticketflow_orch.demo_data.work import corrections, is_misread
    from ticketflow_orch.formatting.counts import counted
    from ticketflow_orch.payouts.parking import parked_by_hand
    from ticketflow_orch.payouts.queries import payouts
    from ticketflow_orch.settings import settings
    from ticketflow_orch.settlement.due import due_months
    from ticketflow_orch.settlement.queries import late_organizations

    with engine.connect() as connection:
        due = due_months(connection, now, first_month)
        late = late_organizations(connection)
        parked = parked_by_hand(connection)
        held = payouts(connection, state="HELD")
    if due:
        yield f"{due[0]} to {due[-1]}", "not settled", f"ticketflow settle --from {due[0]} --to {due[-1]}"
    if is_misread(engine):
        folder = corrections(settings().home.absolute())
        shown = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
        yield misread, "fails: a file was misread", f"ticketflow import {shlex.quote(str(shown))}"
    for month, organizations in late.items():
        yield str(month), f"closed, and late money of {counted(organizations, 'organization')}", "ticketflow late"
    for one in parked:
        yield one.external_ref, f"parked: {one.reason}", f"ticketflow unpark {one.external_ref}"
    for payout in held:
        release = f"ticketflow payouts release --month {payout.month}"
        yield str(payout.month), f"payout of {payout.organization} held", release
