"""`ticketflow demo`: a year of a platform's life, settled, closed, paid and stated before your eyes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from sqlalchemy import Engine

    from ticketflow_orch.cli.month_runs import SpanRun
    from ticketflow_orch.months import Month

_TAGS = {"ticketflow/demo": "true"}
_LONGEST_DELIVERY = 20.0


def demo(
    organizations: Annotated[int, typer.Option(min=10, help="How many organizations the data set has.")] = 400,
    months: Annotated[int, typer.Option(min=1, max=120, help="How many months it spans.")] = 12,
) -> None:
    """Load a demo data set that ends with the last full month; settle, close and pay its months, write statements.

    Nothing leaves the machine: what the outside world would be told is written to a file. Repeating it changes nothing
    and says so.
    """
    from ticketflow_orch.cli.session import instance_and_database
    from ticketflow_orch.cli.settle import report
    from ticketflow_orch.cli.terminal import console, rows_shown
    from ticketflow_orch.clock import now
    from ticketflow_orch.demo_data import load_demo, require_no_others
    from ticketflow_orch.errors import InputError
    from ticketflow_orch.months import Month, months_between
    from ticketflow_orch.settings import settings
    from ticketflow_orch.settlement.due import due_months, months_over

    out = console()
    business_now = now(settings().fixed_clock)
    # The month before last is over in every zone on earth, whatever hour it is here.
    last = Month.of_instant(business_now, "Pacific/Pago_Pago").previous()
    if settings().delivery is not None:
        raise InputError(
            f"The demo pays organizations that do not exist, and TICKETFLOW_DELIVERY={settings().delivery} names real "
            "destinations; unset it for the demo."
        )
    with instance_and_database("demo") as engine:
        # It loads the code location, which then has the months of the database.
        from ticketflow_orch.cli.month_runs import settle_months

        first = Month.parse(settings().first_month)
        partitions = len(list(months_between(first, last)))
        if months > partitions:
            raise InputError(
                f"{first} to {last} are {partitions} months, not {months}; `ticketflow installation set first_month`."
            )
        require_no_others(engine)
        pay_somebody(engine, first)
        with rows_shown() as progress:
            loaded = load_demo(engine, last, months=months, organizations=organizations, progress=progress)
        out.print(str(loaded))
        with engine.connect() as connection:
            due = due_months(connection, business_now, first)
            over = months_over(connection, business_now, first)
        settled = list(settle_months(engine, due, tags=_TAGS))
        green = [report(run) for run in settled].count(False) == 0
        print_totals(engine, over[0], over[-1])
        books = close_pay_and_state(engine, business_now, first, over[-1]) if green else []
        green = green and all(run.succeeded and not run.red_checks for run in books)
        delivered = deliver(engine)
        if green:
            print_statement(engine, over[-1])
        if green and not settled and not books and not delivered:
            out.print("\nEverything had been done before: this run changed nothing.")
    out.print("\nNext: [bold]make ui[/bold] opens it in Dagster at http://127.0.0.1:3000.")
    raise typer.Exit(0 if green else 1)


def pay_somebody(engine: Engine, first: Month) -> None:
    """Pay from `first` on, unless somebody has decided from when on people are paid."""
    from ticketflow_orch.account import account
    from ticketflow_orch.payouts.paid_from import first_paid_month, set_paid_from

    with engine.connect() as connection:
        decided = first_paid_month(connection)
    if decided is None:
        set_paid_from(engine, first, account(), confirmed=True)


def close_pay_and_state(engine: Engine, now: datetime, first_month: Month, last: Month) -> list[SpanRun]:
    """Close all months that may be, request what they pay, write the statements of `last`; returns what ran.

    Statements of the months before would take longer than anybody watches; the schedule writes them.
    """
    from ticketflow_orch.books.periods import months_to_close
    from ticketflow_orch.cli.month_runs import CLOSING_JOB, PAYOUTS_JOB, STATEMENTS_JOB
    from ticketflow_orch.payouts.request import payouts_due_months
    from ticketflow_orch.statements.audit import months_to_state

    with engine.connect() as connection:
        closing = list(months_to_close(connection, now, first_month))
    ran = _ran(CLOSING_JOB, closing, "closed, with {balances written:,} balances")
    with engine.connect() as connection:
        paying = payouts_due_months(connection)
    ran += _ran(PAYOUTS_JOB, paying, "paid: {requested:,} payouts requested, {held:,} held for review")
    with engine.connect() as connection:
        stating = [month for month in months_to_state(connection) if month == last]
    return ran + _ran(STATEMENTS_JOB, stating, "stated: {statements:,} statements")


def _ran(job: str, months: Sequence[Month], sentence: str) -> list[SpanRun]:
    """The run of a job over months, if there are any, and a line that says what came of it."""
    from ticketflow_orch.cli.month_runs import run_span
    from ticketflow_orch.cli.terminal import console

    if not months:
        return []
    run = run_span(job, months, _TAGS)
    span = str(months[0]) if len(months) == 1 else f"{months[0]} to {months[-1]}"
    out = console()
    if run.succeeded:
        out.print(f"{span} {sentence.format_map(run.counted)}")
    else:
        out.print(f"[red]{span} failed:[/red] {run.why}", soft_wrap=True)
    for check in run.red_checks:
        out.print(f"        [red]check {check}[/red]")
    return [run]


def deliver(engine: Engine) -> int:
    """Deliver what is due, which all goes to a file, and say so; returns how much it was."""
    from ticketflow_orch.cli.terminal import console
    from ticketflow_orch.delivery.agreed import require_routes
    from ticketflow_orch.delivery.configuration import read_delivery
    from ticketflow_orch.delivery.kinds import KINDS
    from ticketflow_orch.relay import drain
    from ticketflow_orch.settings import settings

    delivery = read_delivery(settings())
    try:
        with engine.connect() as connection:
            require_routes(connection, delivery.digest)
        delivered = drain(engine, delivery, KINDS, budget=_LONGEST_DELIVERY).delivered
    finally:
        delivery.close()
    if delivered:
        file = settings().home / "outbox.jsonl"
        console().print(
            f"{delivered:,} events for the outside world are in {file}; nothing has left this machine", soft_wrap=True
        )
    return delivered


def print_totals(engine: Engine, first: Month, last: Month) -> None:
    """Print what every month came to: a line a month, a column a currency; and who sold most."""
    from rich.table import Table

    from ticketflow_orch.cli.terminal import console
    from ticketflow_orch.money import written_out
    from ticketflow_orch.settlement.report import month_totals, top_organizations

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
    from ticketflow_orch.explain import explain
    from ticketflow_orch.money import written_out
    from ticketflow_orch.settings import settings
    from ticketflow_orch.settlement.report import top_organizations
    from ticketflow_orch.statements import StatementOptions, write_statement

    with engine.connect() as connection:
        best = top_organizations(connection, month, month, limit=1)[0]
        balances = explain(connection, best.external_ref, month).balances
    addresses = write_statement(engine, best.external_ref, month, StatementOptions.configured(settings()))
    amounts = ("opening", "net", "returned", "settled_elsewhere", "due", "payable", "closing")
    table = Table("currency", box=None, pad_edge=False, header_style="bold")
    for name in amounts:
        table.add_column(name.replace("_", " "), justify="right")
    for balance in balances:
        table.add_row(balance.currency, *(written_out(getattr(balance, name), balance.exponent) for name in amounts))
    out = console()
    out.print(f"\n[bold]Statement of {best.name} ({best.external_ref}) for {month}[/bold]")
    out.print(table)
    for address in addresses:
        out.print(address, soft_wrap=True)
