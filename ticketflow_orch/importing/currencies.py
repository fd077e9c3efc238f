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


_MOVEMENTS = sql(__file__, "movements", out_of_use_occurred_at=out_of_use("occurred_at"))

_ORGANIZATIONS = """
    SELECT code, last_day, count(*) AS organizations, (array_agg(external_ref ORDER BY line))[1] AS external_ref
    FROM linked_organization AS linked JOIN currency ON code::text = linked.currency
    WHERE present_id IS NULL AND last_day < CAST(clock_timestamp() AT TIME ZONE 'UTC' AS date)
        AND (left_on IS NULL OR left_on > last_day)
    GROUP BY code, last_day
    ORDER BY code
"""
