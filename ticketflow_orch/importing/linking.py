"""What each staged row refers to, in the folder or in the database, found once for all questions that follow."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import Any

from ticketflow_orch.importing.format import (
    EVENTS,
    KINDS,
    MONEY_MOVEMENTS,
    OPENING_BALANCES,
    ORGANIZATIONS,
    RESERVATIONS,
    Kind,
)
from ticketflow_orch.importing.staging import Staging
from ticketflow_orch.months import Month, known_zones

# The table takes no movement from before.
_EARLIEST = datetime(1970, 1, 2, tzinfo=UTC)

# `present` is the row that has the same reference already; an id that was drawn for such a row stays unused.
_LINKED = {
    ORGANIZATIONS: """
        SELECT staged.*, present.id AS present_id
        FROM staged_organization AS staged
        LEFT JOIN organization AS present ON present.external_ref = staged.external_ref
    """,
    EVENTS: """
        SELECT staged.*, present.id AS present_id,
            coalesce(stored_organization.id, new_organization.id) AS organization_id
        FROM staged_event AS staged
        LEFT JOIN event AS present ON present.external_ref = staged.external_ref
        LEFT JOIN organization AS stored_organization ON stored_organization.external_ref = staged.organization_ref
        LEFT JOIN staged_organization AS new_organization ON new_organization.external_ref = staged.organization_ref
    """,
    RESERVATIONS: """
        SELECT staged.*, present.id AS present_id,
            coalesce(stored_event.id, new_event.id) AS event_id,
            coalesce(stored_event.status, new_event.status) AS event_status,
            coalesce(stored_organization.external_ref, new_event.organization_ref) AS organization_ref
        FROM staged_reservation AS staged
        LEFT JOIN reservation AS present ON present.public_ref = staged.external_ref
        LEFT JOIN event AS stored_event ON stored_event.external_ref = staged.event_ref
        LEFT JOIN organization AS stored_organization ON stored_organization.id = stored_event.organization_id
        LEFT JOIN staged_event AS new_event ON new_event.external_ref = staged.event_ref
    """,
    MONEY_MOVEMENTS: """
        SELECT staged.*, present.id AS present_id,
            coalesce(stored_organization.id, new_organization.id) AS organization_id,
            coalesce(stored_organization.timezone, new_organization.timezone) AS timezone,
            first_instant.starts_at AS first_instant,
            coalesce(stored_reservation.id, new_reservation.id) AS reservation_id,
            coalesce(stored_seller.external_ref, new_reservation.organization_ref) AS seller_ref,
            coalesce(stored_target.id, new_target.id) AS reverses_id,
            coalesce(stored_target.kind, new_target.kind) AS target_kind,
            coalesce(stored_target.is_void, new_target.is_void) AS target_is_void,
            coalesce(stored_owner.external_ref, new_target.organization_ref) AS target_organization_ref,
            coalesce(CAST(stored_target.currency AS text), new_target.currency) AS target_currency,
            coalesce(stored_target.amount, new_target.amount) AS target_amount,
            coalesce(stored_target.commission_rate_bps, new_target.commission_rate_bps) AS target_rate_bps,
            coalesce(stored_target.commission_tax_bps, new_target.commission_tax_bps) AS target_tax_bps,
            coalesce(stored_target.occurred_at, new_target.occurred_at) AS target_occurred_at,
            coalesce(stored_void.external_ref, new_void.external_ref) AS voided_by
        FROM staged_money_movement AS staged
        LEFT JOIN money_movement AS present ON present.external_ref = staged.external_ref
        LEFT JOIN organization AS stored_organization ON stored_organization.external_ref = staged.organization_ref
        LEFT JOIN staged_organization AS new_organization ON new_organization.external_ref = staged.organization_ref
        LEFT JOIN first_instant
            ON first_instant.timezone = coalesce(stored_organization.timezone, new_organization.timezone)
        LEFT JOIN reservation AS stored_reservation ON stored_reservation.public_ref = staged.reservation_ref
        LEFT JOIN event AS stored_event ON stored_event.id = stored_reservation.event_id
        LEFT JOIN organization AS stored_seller ON stored_seller.id = stored_event.organization_id
        LEFT JOIN linked_reservation AS new_reservation ON new_reservation.external_ref = staged.reservation_ref
        LEFT JOIN money_movement AS stored_target ON stored_target.external_ref = staged.reverses_ref
        LEFT JOIN organization AS stored_owner ON stored_owner.id = stored_target.organization_id
        LEFT JOIN staged_money_movement AS new_target ON new_target.external_ref = staged.reverses_ref
        LEFT JOIN money_movement AS stored_void
            ON staged.is_void AND stored_void.is_void AND stored_void.reverses_id = stored_target.id
        LEFT JOIN (
            SELECT DISTINCT ON (reverses_ref) reverses_ref, line, external_ref
            FROM staged_money_movement WHERE is_void ORDER BY reverses_ref, line
        ) AS new_void
            ON staged.is_void AND new_void.reverses_ref = staged.reverses_ref AND new_void.line < staged.line
    """,
    OPENING_BALANCES: """
        SELECT staged.*, present.id AS present_id,
            coalesce(stored_organization.id, new_organization.id) AS organization_id,
            (
                SELECT min(month) FROM organization_balance AS balance
                WHERE balance.organization_id = stored_organization.id
                    AND CAST(balance.currency AS text) = staged.currency
            ) AS balanced_since
        FROM staged_opening_balance AS staged
        LEFT JOIN organization AS stored_organization ON stored_organization.external_ref = staged.organization_ref
        LEFT JOIN staged_organization AS new_organization ON new_organization.external_ref = staged.organization_ref
        LEFT JOIN opening_balance AS present
            ON present.organization_id = stored_organization.id AND CAST(present.currency AS text) = staged.currency
    """,
}

_FIRST_INSTANTS = """
    CREATE TEMP TABLE first_instant ON COMMIT DROP AS
    SELECT * FROM unnest(%(zones)s::text[], %(instants)s::timestamptz[]) AS zone (timezone, starts_at)
"""


def link(staging: Staging, first_month: Month) -> None:
    """Make `linked_…` of each `staged_…` table. Rows that repeat a reference are noted and left out.

    Tables rather than views: asked anew by each question, joins this wide are planned as if hardly a row were new.
    """
    for kind in KINDS:
        _drop_repeated(staging, kind)
    connection = staging.connection
    connection.exec_driver_sql(_FIRST_INSTANTS, _first_instants(first_month))
    # Nobody else tells the planner about temporary tables.
    connection.exec_driver_sql(f"ANALYZE first_instant, {', '.join(f'staged_{kind.table}' for kind in KINDS)}")
    for kind in KINDS:
        connection.exec_driver_sql(
            f"CREATE TEMP TABLE linked_{kind.table} ON COMMIT DROP AS {_LINKED[kind]}; ANALYZE linked_{kind.table}"
        )


def _drop_repeated(staging: Staging, kind: Kind) -> None:
    # The first row that has the key stays.
    key, column = ", ".join(kind.key), kind.key[-1]
    is_repeated = " AND ".join(f"staged.{name} = repeated.{name}" for name in kind.key)
    repeated = f"""
        SELECT {key}, min(line) AS first_line FROM staged_{kind.table} GROUP BY {key} HAVING count(*) > 1
    """  # noqa: S608
    is_any = staging.note_rows(
        kind,
        f"""
            SELECT line, {kind.position(column)} AS position, '{column}' AS "column",
                CAST(staged.{column} AS text) AS value, 'stands on line ' || first_line || ' already' AS reason
            FROM staged_{kind.table} AS staged JOIN ({repeated}) AS repeated ON {is_repeated}
            WHERE line > first_line
        """,  # noqa: S608
    )
    if is_any:
        staging.connection.exec_driver_sql(
            f"DELETE FROM staged_{kind.table} AS staged USING ({repeated}) AS repeated"  # noqa: S608
            f" WHERE {is_repeated} AND line > first_line"
        )


@cache
def _first_instants(month: Month) -> dict[str, list[Any]]:
    zones = sorted(known_zones())
    return {"zones": zones, "instants": [max(month.window(zone).starts_at, _EARLIEST) for zone in zones]}
