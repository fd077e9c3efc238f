"""`ticketflow status`: how far each month is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import Engine


def status() -> None:
    """Show each month's state, passes and parked organizations, and of how many what came late is not posted yet."""
    from ticketflow_orch.cli.session import database

    with database("status") as engine:
        show(engine)


def show(engine: Engine) -> None:
    """Print the months and, where there are any, the parked organizations."""
    from rich.table import Table

    from ticketflow_orch.cli.terminal import console, here, minute
    from ticketflow_orch.clock import now
    from ticketflow_orch.months import Month
    from ticketflow_orch.settings import settings
    from ticketflow_orch.settlement.due import due_months
    from ticketflow_orch.settlement.queries import late_organizations, month_statuses, parked_organizations

    with engine.connect() as connection:
        statuses = month_statuses(connection)
        late = late_organizations(connection)
        parked = parked_organizations(connection)
        due = due_months(connection, now(settings().fixed_clock), Month.parse(settings().first_month))
    table = Table("month", "state", "passes", f"cutoff ({here()})", "late", "parked", box=None, pad_edge=False)
    for item in statuses:
        table.add_row(
            str(item.month), item.state, str(item.passes), minute(item.cutoff), str(late.get(item.month, 0)),
            str(item.parked),
        )  # fmt: skip
    untouched = {item.month for item in statuses}
    for month in due:
        if month not in untouched:
            table.add_row(str(month), "DUE", "0", "", "", "")
    out = console()
    out.print(table if table.row_count else "No month is due and none was settled.")
    for organization in parked:
        out.print(f"parked: {organization.external_ref} in {organization.month}: {organization.why}", markup=False)
