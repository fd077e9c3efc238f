"""What a settlement came to, read for people: totals, top organizations, the parked, the months so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from ticketflow_orch.db.sql_files import sql
from ticketflow_orch.months import Month
from ticketflow_orch.periods.state import READ_MONTHS, PeriodState, read_periods
from ticketflow_orch.settlement.posting import Pass


@dataclass(frozen=True, slots=True)
class ParkedOrganization:
    """An organization that could not be settled for `month`; `why` is its database error, or a person's reason."""

    external_ref: str
    month: Month
    why: str
    since: datetime


@dataclass(frozen=True, slots=True)
class MonthTotal:
    """What was posted in `month` in one currency: exact sums in minor units; `exponent` is the currency's."""

    month: Month
    currency: str
    exponent: int
    organizations: int
    captures: int
    refunds: int
    chargebacks: int
    fees: int
    commission: int
    commission_tax: int
    net: int


@dataclass(frozen=True, slots=True)
class TopOrganization:
    """One of the organizations with the largest net of some months in a currency: exact sums in minor units."""

    external_ref: str
    name: str
    currency: str
    exponent: int
    captures: int
    refunds: int
    commission: int
    net: int


@dataclass(frozen=True, slots=True)
class MonthStatus:
    """How far a month is: its state, its last pass, and how many organizations are parked in it."""

    month: Month
    state: PeriodState
    passes: int
    cutoff: datetime | None
    settled_at: datetime | None
    parked: int


@dataclass(frozen=True, slots=True)
class WorkDone:
    """What some passes of a month did, over all their chunks, and who could not be settled by the last of them."""

    chunks: int
    rows_new: int
    rows_adjusted: int
    rows_existing: int
    parked: tuple[ParkedOrganization, ...]


def work_done(connection: Connection, passes: Sequence[Pass]) -> WorkDone:
    """What `passes`, one or more of one month, did so far; organizations parked for closed months are included."""
    last = max(passes, key=lambda settlement: settlement.number)
    row = connection.exec_driver_sql(
        """
            SELECT count(*) AS chunks, coalesce(sum(rows_new), 0) AS rows_new,
                coalesce(sum(rows_adjusted), 0) AS rows_adjusted, coalesce(sum(rows_existing), 0) AS rows_existing
            FROM settlement_chunk WHERE month = %(month)s AND pass = ANY (%(passes)s::integer[])
        """,
        {"month": last.month.first_day, "passes": [settlement.number for settlement in passes]},
    ).one()
    parked = """
        SELECT external_ref, parked.month, error AS why, since
        FROM settlement_pass
        JOIN parked_organization AS parked ON parked.month = settlement_pass.month
            OR parked.month <= closed_through
        JOIN organization ON organization.id = organization_id
        WHERE settlement_pass.month = %(month)s AND pass = %(pass)s AND error IS NOT NULL AND resolved_at IS NULL
        ORDER BY organization_id, parked.month
    """
    rows = connection.exec_driver_sql(parked, last.key)
    return WorkDone(
        row.chunks, int(row.rows_new), int(row.rows_adjusted), int(row.rows_existing),
        tuple(ParkedOrganization(one.external_ref, Month.of_day(one.month), one.why, one.since) for one in rows),
    )  # fmt: skip


def parked_organizations(connection: Connection, limit: int = 100) -> tuple[ParkedOrganization, ...]:
    """The organizations that are parked in a month that is not closed, the first `limit` by month and reference."""
    rows = connection.exec_driver_sql(
        """
            SELECT external_ref, month, coalesce(error, reason) AS why, since
            FROM parked_organization JOIN organization ON organization.id = organization_id
            WHERE resolved_at IS NULL
            ORDER BY month, external_ref LIMIT %(limit)s
        """,
        {"limit": limit},
    )
    return tuple(ParkedOrganization(row.external_ref, Month.of_day(row.month), row.why, row.since) for row in rows)


def month_totals(connection: Connection, first: Month, last: Month) -> tuple[MonthTotal, ...]:
    """The totals of the months from `first` to `last`, by month and currency, as their last passes left them."""
    rows = connection.exec_driver_sql(
        """
            SELECT total.*, exponent FROM settlement_total AS total JOIN currency ON code = total.currency
            WHERE month BETWEEN %(first)s AND %(last)s
            ORDER BY month, currency
        """,
        {"first": first.first_day, "last": last.first_day},
    )
    return tuple(
        MonthTotal(
            Month.of_day(row.month), row.currency, row.exponent, row.organizations, int(row.captures),
            int(row.refunds), int(row.chargebacks), int(row.fees), int(row.commission), int(row.commission_tax),
            int(row.net),
        )
        for row in rows
    )  # fmt: skip


def top_organizations(
    connection: Connection, first: Month, last: Month, limit: int = 10
) -> tuple[TopOrganization, ...]:
    """Per currency the `limit` organizations with the largest net over what was posted from `first` to `last`."""
    rows = connection.exec_driver_sql(
        """
            WITH ranked AS (
                SELECT organization_id, currency, sum(captures) AS captures, sum(refunds) AS refunds,
                    sum(commission) AS commission, sum(net) AS net,
                    row_number() OVER (PARTITION BY currency ORDER BY sum(net) DESC, organization_id) AS place
                FROM ledger_entry WHERE month BETWEEN %(first)s AND %(last)s
                GROUP BY organization_id, currency
            )
            SELECT external_ref, name, ranked.*, exponent
            FROM ranked JOIN organization ON organization.id = organization_id JOIN currency ON code = ranked.currency
            WHERE place <= %(limit)s
            ORDER BY ranked.currency, place
        """,
        {"first": first.first_day, "last": last.first_day, "limit": limit},
    )
    return tuple(
        TopOrganization(
            row.external_ref, row.name, row.currency, row.exponent, int(row.captures), int(row.refunds),
            int(row.commission), int(row.net),
        )
        for row in rows
    )  # fmt: skip


def late_organizations(connection: Connection) -> dict[Month, int]:
    """For each settled or closed month, how many organizations have movements that no pass has read."""
    rows = connection.exec_driver_sql(_LATE_ORGANIZATIONS, unread_bounds(connection))
    return {Month.of_day(row.month): row.organizations for row in rows}


def unread_bounds(connection: Connection) -> dict[str, object]:
    """The parameters of `UNREAD`: where the movements begin that no pass has read, and before which instant they lie.

    Asked first, so that they are values to the planner, which then takes the index on the order of recording.
    """
    return dict(connection.exec_driver_sql(_UNREAD_BOUNDS).one()._mapping)


def month_statuses(connection: Connection) -> tuple[MonthStatus, ...]:
    """Every month that a settlement has touched, in order."""
    periods = read_periods(connection)
    rows = connection.exec_driver_sql(_PROGRESS, {"months": [one.month.first_day for one in periods]})
    return tuple(
        MonthStatus(one.month, one.state, row.passes, row.cutoff, one.settled_at, row.parked)
        for one, row in zip(periods, rows, strict=True)
    )


_PROGRESS = sql(__file__, "progress")


_UNREAD_BOUNDS = sql(__file__, "unread_bounds", read_months=READ_MONTHS)

# The query `unread` (month, organization_id, currency, amount): the movements about settled and closed months that no
# pass has read. Its binds are those of `unread_bounds`.
UNREAD = sql(__file__, "unread", read_months=READ_MONTHS)

_LATE_ORGANIZATIONS = sql(__file__, "late_organizations", unread=UNREAD)
