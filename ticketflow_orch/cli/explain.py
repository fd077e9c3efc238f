"""`ticketflow explain`: one organization's month, from movements to ledger and balance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ticketflow_orch.cli.amounts import BALANCE, ENTRY, LINE, cells, headings

if TYPE_CHECKING:
    from rich.table import Table

    from ticketflow_orch.reports.explain import Explanation


def explain(
    organization: Annotated[str, typer.Argument(help="The organization's external reference.")],
    month: Annotated[str, typer.Argument(metavar="YYYY-MM")],
) -> None:
    """Explain an organization's month: lines by rate, the movements behind them, and what the ledger says."""
    from ticketflow_orch.cli.session import database
    from ticketflow_orch.months import Month
    from ticketflow_orch.reports.explain import explain as explained

    with database("explain") as engine, engine.connect() as connection:
        show(explained(connection, organization, Month.parse(month)))


def show(explanation: Explanation) -> None:
    """Print an explanation."""
    from ticketflow_orch.cli.terminal import console
    from ticketflow_orch.months import to_the_minute

    out = console()
    window = explanation.window
    out.print(
        f"{explanation.external_ref} · {explanation.name} · {explanation.month} · {explanation.state}", markup=False
    )
    here = explanation.business_timezone
    starts_at, ends_at = (to_the_minute(edge, here) for edge in (window.starts_at, window.ends_at))
    out.print(
        f"{explanation.timezone}: from {starts_at} until before {ends_at} ({here}); "
        f"cutoff {to_the_minute(explanation.cutoff, here) if explanation.cutoff else 'none yet'}"
    )
    if explanation.not_paid_here:
        out.print(explanation.not_paid_here)
    if explanation.before_the_books:
        out.print(explanation.before_the_books, soft_wrap=True)
    if explanation.parked:
        out.print(f"parked: {explanation.parked}", style="red", markup=False)
    for one in explanation.anomalies:
        accepted = f"; accepted by {one.accepted_by}" if one.accepted_by else ""
        out.print(f"looks wrong: {one.currency} {one.what}{accepted}", style="yellow", markup=False)
    for title, table in (
        ("Lines by rate", _lines(explanation)),
        ("Movements", _movements(explanation)),
        ("Ledger entries about this month", _entries(explanation)),
        ("Balance", _balances(explanation)),
    ):
        out.print(f"\n[bold]{title}[/bold]")
        out.print(table if table.row_count else "none")


def _table(*columns: str, numbers: int) -> Table:
    """A table whose last `numbers` columns are amounts, and so set to the right."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for position, column in enumerate(columns):
        table.add_column(column, justify="right" if position >= len(columns) - numbers else "left")
    return table


def _lines(explanation: Explanation) -> Table:
    table = _table("currency", "rate", "tax", *headings(LINE), numbers=8)
    for line in explanation.lines:
        rates = (f"{line.commission_rate_bps / 100:g} %", f"{line.commission_tax_bps / 100:g} %")
        table.add_row(line.currency, *rates, *cells(line, LINE))
    return table


def _movements(explanation: Explanation) -> Table:
    from ticketflow_orch.formatting.money import written_out
    from ticketflow_orch.months import to_the_minute

    here = explanation.business_timezone
    table = _table("reference", "kind", f"occurred ({here})", "reverses", "", "rate", "currency", "amount", numbers=1)
    for movement in explanation.movements:
        table.add_row(
            movement.external_ref,
            f"{movement.kind}{' (void)' if movement.is_void else ''}",
            to_the_minute(movement.occurred_at, here),
            movement.reverses or "",
            "late" if movement.late else "",
            f"{movement.commission_rate_bps / 100:g} %",
            movement.currency,
            written_out(movement.amount, movement.exponent),
        )
    return table


def _entries(explanation: Explanation) -> Table:
    table = _table("posted in", "sequence", "reason", "currency", *headings(ENTRY), numbers=len(ENTRY))
    for entry in explanation.entries:
        table.add_row(
            str(entry.month),
            str(entry.sequence),
            entry.reason or "settlement",
            entry.currency,
            *cells(entry, ENTRY),
        )
    return table


def _balances(explanation: Explanation) -> Table:
    table = _table("currency", "payout", *headings(BALANCE), numbers=len(BALANCE))
    for balance in explanation.balances:
        paid = (balance.paid or "none").lower().replace("_", " ")
        table.add_row(balance.currency, paid, *cells(balance, BALANCE))
    return table
