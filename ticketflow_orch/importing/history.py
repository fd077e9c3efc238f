"""What an import takes and warns of: history of organizations new to the books that the next closing pays."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection, text

from ticketflow_orch.formatting.counts import counted
from ticketflow_orch.months import Month


def history_to_be_paid(connection: Connection) -> Iterator[str]:
    """A sentence about new movements of closed months by which organizations without books are owed something.

    Who comes with history has most likely been paid for it where they come from. `link` has made the tables.
    """
    row = connection.execute(_TO_BE_PAID).one()
    if row.movements:
        yield (
            f"{counted(row.movements, 'movement')} of {counted(row.organizations, 'organization')} new to the books, "
            f"such as {row.example!r}, in months until {Month.of_day(row.closed)}, which are closed: the next closing "
            "pays them. Where they were settled elsewhere, name the first month that is paid here: `ticketflow "
            "payouts from YYYY-MM --organization REF`."
        )


# Months as UTC has them, which is near enough for a warning.
_TO_BE_PAID = text("""
    WITH last AS (
        SELECT CAST(max(month) AS date) AS closed FROM settlement_period WHERE state IN ('CLOSING', 'CLOSED')
    ), early AS (
        SELECT organization_ref, organization_id, line,
            CAST(date_trunc('month', occurred_at AT TIME ZONE 'UTC') AS date) AS month
        FROM linked_money_movement, last
        WHERE present_id IS NULL AND occurred_at < (closed + interval '1 month') AT TIME ZONE 'UTC'
    )
    SELECT count(*) AS movements, count(DISTINCT early.organization_id) AS organizations,
        (array_agg(organization_ref ORDER BY early.line))[1] AS example, (SELECT closed FROM last) AS closed
    FROM early
    LEFT JOIN organization AS stored ON stored.id = early.organization_id
    LEFT JOIN linked_organization AS new ON new.external_ref = organization_ref AND new.present_id IS NULL
    WHERE early.month >= coalesce(
            CAST(new.payouts_from || '-01' AS date), stored.payouts_from, (SELECT payouts_from FROM installation))
        AND NOT EXISTS (
            SELECT FROM organization_balance AS balance WHERE balance.organization_id = early.organization_id)
""")
