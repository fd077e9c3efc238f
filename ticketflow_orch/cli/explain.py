"""`ticketflow explain`: one organization's month, from movements to ledger and balance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from ticketflow_orch.formatting.columns import Column
    from ticketflow_orch.reports.explain import Explanation

Row = TypeVar("Row")


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
    from ticketflow_orch.reports import explanation_columns as columns

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
        ("Lines by rate", _table(columns.LINES, explanation.lines)),
        ("Movements", _table(columns.movements(here), explanation.movements)),
        ("Ledger entries about this month", _table(columns.entries(here), explanation.entries)),
        ("Balance", _table(columns.BALANCES, explanation.balances)),
    ):
        out.print(f"\n[bold]{title}[/bold]")
        out.print(table if table.row_count else "none")


def _table(columns: Sequence[Column[Row]], rows: Iterable[Row]) -> Table:
    from rich.table import Table
    from rich.text import Text

    from ticketflow_orch.formatting.columns import cells

    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column.name, justify="left" if column.kind == "text" else "right")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in cells(columns, row)))
    return table
