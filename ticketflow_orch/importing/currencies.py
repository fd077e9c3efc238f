"""What an import takes and warns of: rows in currencies that were not in use then."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection

from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.formatting.counts import counted
from ticketflow_orch.settlement.currencies import out_of_use


def unusual_currencies(connection: Connection) -> Iterator[str]:
    """A sentence for each currency that new rows name and that was not in use then; `link` has made the tables."""
    for row in connection.exec_driver_sql(_MOVEMENTS):
        yield (
            f"{counted(row.movements, 'movement')} in {row.code}, such as {row.external_ref!r} of {row.occurred_on}, "
            f"when it was not in use ({_days(row.first_day, row.last_day)}); `ticketflow audit` lists them."
        )
    for row in connection.exec_driver_sql(_ORGANIZATIONS):
        yield (
            f"{counted(row.organizations, 'organization')} with the currency {row.code}, such as "
            f"{row.external_ref!r}, which was in use until {row.last_day}; `ticketflow currency replace` gives them "
            "another."
        )


def _days(first: object, last: object) -> str:
    return " ".join(f"{word} {day}" for word, day in (("from", first), ("until", last)) if day is not None)


_MOVEMENTS = sql(__file__, "movements", out_of_use=out_of_use("occurred_at"))
_ORGANIZATIONS = sql(__file__, "organizations")
