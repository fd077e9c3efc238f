"""What an import takes and warns of: history of organizations new to the books that the next closing pays."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection

from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.formatting.counts import counted
from ticketflow_orch.months import Month
from ticketflow_orch.periods.state import PERIODS


def history_to_be_paid(connection: Connection) -> Iterator[str]:
    """A sentence about new movements of closed months by which organizations without books are owed something.

    Who comes with history has most likely been paid for it where they come from. `link` has made the tables.
    """
    row = connection.exec_driver_sql(_TO_BE_PAID).one()
    if row.movements:
        yield (
            f"{counted(row.movements, 'movement')} of {counted(row.organizations, 'organization')} new to the books, "
            f"such as {row.example!r}, in months until {Month.of_day(row.closed)}, which are closed: the next closing "
            "pays them. Where they were settled elsewhere, name the first month that is paid here: `ticketflow "
            "payouts from YYYY-MM --organization REF`."
        )


_TO_BE_PAID = sql(__file__, "to_be_paid", periods=PERIODS)
